#!/usr/bin/env bash
# One client scenario of the MCP conformance suite, which appends the URL of its server: weir is the client, with the
# server in its weir.yaml, and the scenario's tool is executed through the gate like any other.
set -euo pipefail
weir=${WEIR:?the binary to test}
dir=$(mktemp -d)
export NATS_URL=nats://127.0.0.1:${WEIR_PORT:-4299} WEIR_PRINCIPAL=conformance
cat >"$dir/weir.yaml" <<YAML
mcpServers:
  suite:
    url: $1
    allow: ["127.0.0.1", "::1"]
    effects: {"*": idempotent}
YAML
cd "$dir"
"$weir" dev --dir data --listen "${NATS_URL#nats://}" --admin '' --gateway '' >dev.log 2>&1 </dev/null &
dev=$!
trap 'kill $dev; wait $dev || true; cat dev.log >&2; rm -rf "$dir"' EXIT

tool() { # waits for it, executes it, and answers what it asks with the defaults of its form
	for _ in {1..100}; do
		"$weir" tool info "$1" >/dev/null 2>&1 && break
		sleep 0.1
	done
	local code=0
	"$weir" tool execute "$1" "$2" --run call </dev/null >&2 || code=$?
	if [ "$code" = 3 ]; then
		"$weir" approvals resume call --data '{"action": "accept", "content": {}}' </dev/null >&2
		code=0
		"$weir" tool execute "$1" --run call </dev/null >&2 || code=$?
	fi
	return "$code"
}

case ${MCP_CONFORMANCE_SCENARIO:?} in
initialize) sleep 3 ;; # the suite looks at how weir says hello; the server has no tools
tools_call) tool suite_add_numbers '{"a": 5, "b": 3}' ;;
sse-retry) tool suite_test_reconnection '{}' ;;
elicitation-*) tool suite_test_client_elicitation_defaults '{}' ;;
*) echo "no such scenario here: $MCP_CONFORMANCE_SCENARIO" >&2 && exit 2 ;;
esac
