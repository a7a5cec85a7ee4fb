#!/usr/bin/env bash
# Asks a service one question three ways: with curl, with the Python client, through gRPC reflection.
#
#   planner serve &                     # or elsewhere: ask.sh http://HOST:8642 HOST:8643
#   examples/service/ask.sh
#
# PLANNER_TOKEN holds the token where the service asks for one. The service may still be starting:
# it is waited for, half an hour at most.
set -euo pipefail
http="${1:-http://127.0.0.1:8642}" grpc="${2:-127.0.0.1:8643}"
here="$(cd "$(dirname "$0")" && pwd)"
python="$here/../../.venv/bin/python"
question='{"model": "llama3-70b", "cluster": "h100-x512", "top": 3}'

for _ in $(seq 1800); do
    curl -fs "$http/readyz" >/dev/null && break
    sleep 1
done
curl -fsS "$http/readyz" >/dev/null

[ -x "$python" ] || python=python3
echo "curl:"
curl -fsS -H 'Content-Type: application/json' ${PLANNER_TOKEN:+-H "Authorization: Bearer $PLANNER_TOKEN"} \
    -d "$question" "$http/v1/plans:solve" | "$python" "$here/ask.py" --show
exec "$python" "$here/ask.py" "$http" "$grpc" "$question"
