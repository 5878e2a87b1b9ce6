#!/usr/bin/env bash
# Runs the client scenarios of the MCP conformance suite against the binary $WEIR. Those of OAuth are left out: weir takes
# the headers that mcpServers names.
set -euo pipefail
cd "$(dirname "$0")"
npm ci --no-audit --no-fund --silent
for scenario in initialize tools_call sse-retry elicitation-sep1034-client-defaults; do
	log=$(mktemp)
	echo "client: $scenario"
	if ! node_modules/.bin/node node_modules/@modelcontextprotocol/conformance/dist/index.js client \
		--command "$PWD/client.sh" --scenario "$scenario" --timeout 120000 --expected-failures expected.yaml >"$log" 2>&1; then
		cat "$log"
		rm "$log"
		exit 1
	fi
	grep -E '^(Passed|  - |    Error)' "$log" || true
	rm "$log"
done
