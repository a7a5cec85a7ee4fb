"""What the emitted files share: the header, the facts line, the nodes of a layout."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal

from costmodels.axes import AXES
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.frameworks.emit_request import EmitRequest
from planner.specs.schema import OTHER_MODEL, DetailsSpec
from searches.frameworks.deepspeed.layouts import pipeline_partition
from searches.frameworks.megatron.layouts import megatron_vocab

FACTS_PREFIX = "# layout: "
"""Start of the comment line that repeats the plan as JSON, for tools that read the files back."""


def fact_lines(
    request: EmitRequest, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the plan as plain values, with what a framework derives from it.

    `details` are those of the model that the file does not say elsewhere; None: it has none.
    """
    layout, shape, pool = request.layout, request.shape, request.pool
    n_nodes, per_node = nodes(layout, pool)
    plain = asdict(layout)
    # An axis that is off is not named.
    plain |= plain.pop("switches")
    for axis in AXES.values():
        if not axis.is_always_written and axis.name not in layout.in_use:
            plain.pop(axis.name, None)
    if layout.recompute_text == layout.recompute:
        del plain["recompute_modules"]  # the kind says which
    return plain | {
        "model": shape.name,
        "layers": shape.layers,
        "n_micro": layout.n_micro,
        "padded_vocab": megatron_vocab(shape, layout.tp),
        "pipeline_partition": pipeline_partition(layout) if layout.vpp == 1 else "",
        "precision": request.job.precision,
        "generation": pool.accelerator.generation,
        "n_nodes": n_nodes,
        "devices_per_node": per_node,
        "unsaid": unsaid(shape, request.job)
        | ({} if details is None else {"details": dict(details)}),
    }


def unsaid(shape: ModelShape, job: TrainingJob) -> dict[str, object]:
    """Return the fields of the model file that no framework's flags carry.

    With them a file that is read back gives the same plan: `planner check`.
    """
    fields: dict[str, object] = {
        "tokens": job.tokens or None,
        "max_positions": shape.max_positions,
        "padded_vocab": shape.padded_vocab,
        "vocab_multiple": shape.vocab_multiple,
    }
    fields |= {"windows": True} if shape.window is not None else {}
    return fields | ({"imbalance": shape.imbalance} if shape.n_experts else {})


def stated_or_none(details: DetailsSpec) -> dict[str, object] | None:
    """Return the details that are set; None where there are none."""
    return dict(details.stated()) or None


def shown_details(details: DetailsSpec, width: int = 96) -> list[str]:
    """Return the details that are set as comment lines of at most `width`, without their `#`."""
    if not details.stated():
        return []
    phrases = [
        f"{name} {json.dumps(value).strip(chr(34))}" for name, value in details.stated().items()
    ]
    text = f"The model file states: {', '.join(phrases)}."
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


NOT_OF_THE_MODEL = ("aux_loss", "init_std")
"""Details that a framework may do otherwise and train the same model."""


def differences(missing: Sequence[str]) -> list[str]:
    """Return those of the lines on what a framework cannot say that make another model."""
    return [line for line in missing if not line.startswith(NOT_OF_THE_MODEL)]


def training_only(missing: Sequence[str]) -> list[str]:
    """Return the other lines: what is trained in another way, with the same parts."""
    return [line for line in missing if line.startswith(NOT_OF_THE_MODEL)]


def guarded(settings: str, missing: Sequence[str]) -> list[str]:
    """Return the first lines of a launcher, which refuses to train another model.

    `settings` has the line after which a script stops at its first error. Only where `missing`,
    what the framework cannot say, makes another model, `--accept-differences` is asked for.
    """
    lines = settings.splitlines()
    if not (match := differences(missing)):
        return lines
    line_idx = lines.index(_STRICT) + 1
    names = [f"#   {line}" for line in match]
    return [
        *lines[: line_idx - 1],
        *_DIFFERENT,
        *names,
        *lines[line_idx - 1 : line_idx],
        *_GUARD,
        *lines[line_idx:],
    ]


def accepted(script: str) -> str:
    """Return a launcher that runs without being asked: a timing trial, whose model is nobody's."""
    return script.replace(_ASKED, "\nACCEPTED=yes\n", 1)


_ASKED = "\nACCEPTED=\n"
_STRICT = "set -euo pipefail"
_DIFFERENT = (
    "#",
    "# NOT THE SAME MODEL: of the model file this framework cannot say the following. The script",
    "# runs only with --accept-differences, and then trains a model without these parts.",
)
_GUARD = """
ACCEPTED=
WORDS=()
for word in "$@"; do
  if [[ "${word}" == "--accept-differences" ]]; then ACCEPTED=yes; else WORDS+=("${word}"); fi
done
: "${ACCEPTED:?not the model of the model file, see NOT THE SAME MODEL in this script;\
 --accept-differences trains it all the same}"
set -- "${WORDS[@]+"${WORDS[@]}"}"
""".splitlines()


def carried_by_config(details: DetailsSpec) -> list[str]:
    """Return the comment that says where parts of a model are that no setting carries."""
    if not any(name in OTHER_MODEL for name in details.stated()):
        return []
    return [
        "MODEL names the config.json of the model, which carries all of this; nothing of it is a",
        "setting of the files here.",
    ]


def nodes(layout: Layout, pool: Pool) -> tuple[int, int]:
    """Return nodes and processes per node; (0, 0) when the devices do not fill whole nodes."""
    if layout.n_devices <= pool.devices_per_node:
        return 1, layout.n_devices
    n_nodes, rest = divmod(layout.n_devices, pool.devices_per_node)
    return (0, 0) if rest else (n_nodes, pool.devices_per_node)


def head(title: str, header: Sequence[str], plan: dict[str, object]) -> list[str]:
    """Return the first lines of a script."""
    plain = [part for line in header for part in line.splitlines()]
    return [
        "#!/usr/bin/env bash",
        f"# {title}",
        *(f"# {line}".rstrip() for line in plain),
        FACTS_PREFIX + json.dumps(plan, sort_keys=True, separators=(",", ":")),
    ]


def train_steps(job: TrainingJob) -> int:
    """Return the optimizer steps of the run; 10, a timing trial, when no tokens are stated."""
    return -int(-job.tokens // job.tokens_per_step) if job.tokens else 10


WORDS, NAMES, TEXTS = r"[A-Za-z_]+", r"[A-Za-z0-9_.]+", r"[^\s#].*"
"""Which texts `yaml_scalar` leaves without quotes: words, names with digits and points, all."""
_LETTERS = ("y", "n", "Y", "N")
"""What YAML 1.1 takes for a switch and PyYAML does not."""


def yaml_scalar(value: object, bare: str = "") -> str:
    """Return a value as one line of YAML that readers of 1.1 and of 1.2 take alike.

    Floats have a point and no exponent, which PyYAML takes for a text. Texts are in quotes but for
    those that match the pattern `bare` and that a reader takes for texts.

    >>> [yaml_scalar(x, WORDS) for x in (True, None, 1e-05, ["a", 0.5], "bf16", "cosine", "no")]
    ['true', 'null', '0.00001', '["a", 0.5]', '"bf16"', 'cosine', '"no"']
    """
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(yaml_scalar(x) for x in value)}]"
    if isinstance(value, str) and bare and re.fullmatch(bare, value) and _is_text(value):
        return value
    return json.dumps(value)


def _is_text(value: str) -> bool:
    """Tell whether a reader of YAML takes a plain text for itself."""
    import yaml  # 20 ms, and only files of YAML need it

    try:
        return value not in _LETTERS and yaml.safe_load(value) == value
    except yaml.YAMLError:
        return False


class EmittedCode(str):
    """Python source that stands for itself, not for a string."""


def python_literal(value: object, indent: int = 0, width: int = 100) -> str:
    """Return a value as Python source: lists that are too long for a line get one line an item."""
    text = str(value) if isinstance(value, EmittedCode) else repr(value).replace("'", '"')
    if not isinstance(value, list) or indent + len(text) + 48 <= width:
        return text
    inner = " " * (indent + 4)
    lines = [f"{inner}{python_literal(item, indent + 4, width)},\n" for item in value]
    return "[\n" + "".join(lines) + " " * indent + "]"


def keywords(values: Mapping[str, object], indent: int) -> str:
    """Return keyword arguments as Python source, one a line."""
    space = " " * indent
    return "".join(
        f"{space}{name}={python_literal(value, indent)},\n" for name, value in values.items()
    )


def wrap(tokens: Sequence[str], width: int = 96) -> list[str]:
    """Return options on lines of at most `width`, an option never apart from its values."""
    lines: list[str] = []
    for option in _options(tokens):
        if lines and len(lines[-1]) + 1 + len(option) <= width:
            lines[-1] += " " + option
        else:
            lines.append(option)
    return lines


def _options(tokens: Sequence[str]) -> list[str]:
    options: list[str] = []
    for word in tokens:
        if word.startswith("--") or not options:
            options.append(word)
        else:
            options[-1] += " " + word
    return options
