// Uses the types that openapi-typescript makes of docs/openapi.json, as a program would: tsc checks
// it (scripts/check_typescript_client). With an address it asks a service.
import type { components, paths } from "./api";

type SolveRequest = components["schemas"]["SolveRequest"];
type SolveAnswer = paths["/v1/plans:solve"]["post"]["responses"][200]["content"]["application/json"];
type Job = components["schemas"]["JobAnswer"];
type Problem = components["schemas"]["ProblemAnswer"];

const asked: Pick<SolveRequest, "model" | "cluster" | "objective" | "framework" | "pins"> = {
  model: "llama3-8b",
  cluster: "h100-x8",
  objective: "step_time",
  framework: "megatron",
  pins: { tp: 2 },
};
// @ts-expect-error: an objective that there is none of
const wrong: SolveRequest["objective"] = "beauty";
const state: Job["state"] = "SUCCEEDED";

function told(answer: SolveAnswer | Problem): string {
  if ("detail" in answer) {
    const faults = ((answer as Problem).errors ?? []).map((fault) => `${fault.field}: ${fault.message}`);
    return [answer.detail, ...faults].join("\n");
  }
  const best = (answer as SolveAnswer).plans[0];
  return best ? `tp ${best.layout.tp}, ${best.step_time_s} s` : "nothing fits";
}

export async function ask(address: string): Promise<string> {
  const answer = await fetch(`${address}/v1/plans:solve`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(asked),
  });
  return told((await answer.json()) as SolveAnswer | Problem);
}

export { state, wrong };
