#!/bin/sh
# A small worker: it hosts one tool that reads, by the worker protocol of events/README.md, with nothing but the programs
# nats, jq and openssl. The tool is a program: arguments on its standard input, the result as JSON on its standard output.
#
#   NATS_URL=nats://127.0.0.1:4222 GATE_KEY=U… TOOL=./count LEASE=30 sh worker.sh
#
# It leaves out what a tool needs that changes the world: there a claim of a worker that is gone would be in doubt, and an
# outcome that came too late would be kept. A call of this tool is simply claimed again.
set -eu

id=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || openssl rand -hex 16)
prefix=weir.default runs=weir_default_runs registry=weir_default_registry pool=pool-default
here=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$here"' EXIT
trap 'exit 0' INT TERM

now() { date -u +%Y-%m-%dT%H:%M:%SZ; }
uuid7() { # 48 bits of milliseconds, then version, variant and chance
  r=$(openssl rand -hex 10)
  printf '%012x%s' "$(($(date +%s) * 1000))" "$r" |
    sed -E 's/(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-7\3-8\4-\5/'
}
# Bodies come from outside: the client must not take them for templates, as its pub does.
ask() { subject=$1 body=$2; shift 2; nats request "$subject" "$body" --raw --timeout 2s "$@" 2>/dev/null; }
say() { nats pub "$1" "$2" --quiet --no-templates >/dev/null 2>&1; }

# 1. Register, and say every 5 seconds that this process lives.
schema='{"additionalProperties":false,"properties":{"orderId":{"type":"string"}},"required":["orderId"],"type":"object"}'
digest=sha256:$(printf %s "$schema" | sha256sum | cut -d' ' -f1)
manifest=$(jq -cn --argjson schema "$schema" --arg digest "$digest" '{id: "count", version: "1",
  description: "Counts what was ordered", inputSchema: $schema, inputSchemaDigest: $digest, effect: "read_only",
  pool: "default", source: {kind: "go"}}')
put() { key=$1; shift; ask "\$KV.$registry.$key" "$@" | jq -e .seq >/dev/null; }
live() {
  put "live.tool-executor.$id" "$(jq -cn --arg id "$id" --arg at "$started" \
    '{service: "tool-executor", id: $id, pool: "default", tools: ["count@1"], since: $at}')" -H Nats-TTL:15s
}
started=$(now)
put "def.$(printf %s "$manifest" | sha256sum | cut -d' ' -f1)" "$manifest"
put tool.count "$manifest"
live
while sleep 5; do live || true; done &

# 3. Check. The key of a gate, as openssl reads it, is the 32 bytes that stand in an nkey after its prefix.
{
  printf '\060\052\060\005\006\003\053\145\160\003\041\000'
  printf %s "$GATE_KEY" | base32 -d | tail -c +2 | head -c 32
} >"$here/gate.der"

genuine() { # the message in $here/msg is a release that the gate has signed, exactly as it came, for exactly this subject
  [ "$(jq -r '.Header["weir-key"][0] // ""' "$here/msg")" = "$GATE_KEY" ] || return 1
  jq -r '.Header["weir-sig"][0] // ""' "$here/msg" | tr -d '\n' | tr -- '-_' '+/' | sed 's/$/==/' | base64 -d >"$here/sig" 2>/dev/null || return 1
  { printf 'weir.go.v1\0%s\0' "$subj"; cat "$here/payload"; } >"$here/signed"
  openssl pkeyutl -verify -rawin -pubin -keyform DER -inkey "$here/gate.der" -in "$here/signed" -sigfile "$here/sig" >/dev/null 2>&1
}
field() { jq -r ".data.$1 // \"\"" "$here/payload"; }
print() { # the fingerprint of the release
  { printf 'weir.fp.v1'; for f in namespace runId toolCallId round toolId toolVersion inputSchemaDigest; do printf '\0%s' "$(field $f)"; done
    printf '\0'; jq -j .data.args "$here/payload"; } | sha256sum | cut -d' ' -f1
}
holds() {
  genuine && [ "$(field fingerprint)" = "sha256:$(print)" ] && [ "$(field inputSchemaDigest)" = "$digest" ] &&
    [ "$subj" = "$prefix.run.$(field runId).call.$c.go.$(field pool).$(field toolId)" ] && [ "$(field toolCallId)" = "$run=$c" ] &&
    jq -j .data.args "$here/payload" | jq -e 'keys == ["orderId"] and (.orderId | type == "string")' >/dev/null 2>&1
}

# append KIND TYPE DATA AFTER prints the sequence of the fact. With any other answer nobody knows here what is stored: the
# message stays unsettled, and the next delivery begins by reading the log.
append() {
  event=$(jq -cn --arg id "$(uuid7)" --arg type "dev.weirkeeper.$2.v1" --arg run "$run" --arg at "$(now)" --arg cause "$cause" \
    --argjson data "$3" '{specversion: "1.0", id: $id, source: "/weir/default/sh-worker", type: $type, subject: $run, time: $at,
    partitionkey: $run, correlationid: ($run | split("=")[0]), causationid: $cause, datacontenttype: "application/json", data: $data}')
  ask "$prefix.put.run.$run.call.$c.$1" "$event" -H content-type:application/cloudevents+json \
    -H "Nats-Expected-Last-Subject-Sequence:$4" -H "Nats-Expected-Last-Subject-Sequence-Subject:$prefix.run.$run.call.$c.>" |
    jq -er '.seq // empty'
}

# last prints the last fact of the call's chain: its kind, sequence, time in seconds, and its data.
last() {
  ask "\$JS.API.STREAM.MSG.GET.$runs" "{\"last_by_subj\":\"$prefix.run.$run.call.$c.>\"}" | jq -er '.message |
    "\(.subject | split(".")[6]) \(.seq) \(.time | sub("\\..*"; "Z") | fromdate) \(.data | @base64d | fromjson | .data | tojson)"'
}
lives() { # 10037 alone says that it does not: what cannot be read lives
  ask "\$JS.API.STREAM.MSG.GET.KV_$registry" "{\"last_by_subj\":\"\$KV.$registry.live.tool-executor.$1\"}" |
    jq -e 'if .error then .error.err_code != 10037 else .message.hdrs // "" | @base64d | test("KV-Operation:|Nats-Marker-Reason:") | not end' >/dev/null || [ $? -gt 1 ]
}

# released handles the message and fails when it must come again.
released() {
  run=$(printf %s "$subj" | cut -d. -f4) c=$(printf %s "$subj" | cut -d. -f6) cause=$(jq -r '.id // ""' "$here/payload" 2>/dev/null || true)
  seq=$(printf %s "$reply" | awk -F. '{ print (NF > 9 ? $8 : $6) }') after=$seq attempt=1
  if ! holds; then
    if genuine && [ "$(field toolId)@$(field toolVersion)" != count@1 ]; then return 1; fi # another host may have it
    append result call.finished "$(jq -cn --arg run "$run" --arg call "$run=$c" --argjson seq "$seq" '{toolCallId: $call, runId: $run,
      round: 0, outcome: "blocked", started: false, reason: "fingerprint_mismatch", foreign: $seq,
      error: {name: "fingerprint_mismatch", message: "the call was not released for these arguments"}}')" "$seq" >/dev/null
    return
  fi
  head=$(last) || return 1
  kind=${head%% *} rest=${head#* } at=${rest%% *} rest=${rest#* } stored=${rest%% *} data=${rest#* }
  case $kind in
  go) [ "$at" = "$seq" ] && [ "$(date +%s)" -lt "$(field startBy | sed 's/\..*Z/Z/' | jq -Rr fromdate)" ] || return 1 ;;
  claim)
    worker=$(printf %s "$data" | jq -r .worker)
    [ "$(printf %s "$data" | jq .goSeq)" = "$seq" ] || return 0
    if [ "$worker" != "$id" ]; then [ "$(date +%s)" -gt $((stored + LEASE)) ] && ! lives "$worker" || return 1; fi
    after=$at attempt=$(($(printf %s "$data" | jq .attempt) + 1)) ;;
  *) return 0 ;; # a later fact carries the call on
  esac

  # 4. Claim, and 5. run, and say what came of it.
  base=$(jq -c --arg id "$id" --argjson attempt "$attempt" '.data | {toolCallId, runId, round, attempt: $attempt, worker: $id}' "$here/payload")
  claim=$(append claim call.claimed "$(printf %s "$base" | jq -c --argjson seq "$seq" --argjson lease "$LEASE" \
    '. + {goSeq: $seq, leaseUntil: (now + $lease | floor | todate)}')" "$after") || return 1
  if result=$(jq -j .data.args "$here/payload" | "$TOOL" | jq -ce .); then
    outcome=$(jq -cn --argjson result "$result" '{outcome: "ok", result: $result}')
  else
    outcome='{"outcome":"error","error":{"name":"Error","message":"the tool failed"}}'
  fi
  append result call.finished "$(printf %s "$base" | jq -c --argjson claim "$claim" --argjson out "$outcome" --slurpfile go "$here/payload" \
    '. + $out + {started: true, claimSeq: $claim, toolName: $go[0].data.toolName}
    + if .round > 0 then {args: ($go[0].data.args | fromjson)} else {} end')" "$claim" >/dev/null
}

# 2. Pull. One subscription takes what comes in; each message becomes a file.
inbox=_INBOX.$id
mkdir "$here/in"
nats sub "$inbox" --dump "$here/in" >/dev/null 2>&1 &
came() { for f in "$here"/in/*.json; do jq -e . "$f" >"$here/msg" 2>/dev/null && rm -f "$f" && return; done; return 1; }
within() { # tries to do something for so many tenths of a second
  left=$1; shift
  until "$@"; do [ $((left -= 1)) -gt 0 ] || return 1; sleep 0.1; done
}
up() { say "$inbox" up; came; }
within 300 up # it listens
echo working
while :; do
  nats pub "\$JS.API.CONSUMER.MSG.NEXT.$runs.$pool" '{"batch":1,"expires":5000000000}' --reply "$inbox" --quiet >/dev/null 2>&1
  within 80 came || continue
  subj=$(jq -r .Subject "$here/msg") reply=$(jq -r '.Reply // ""' "$here/msg")
  [ -n "$reply" ] || continue # a status: nothing to do now
  jq -r '.Data // ""' "$here/msg" | base64 -d >"$here/payload"
  while sleep 10; do say "$reply" +WPI; done &
  busy=$!
  if released; then say "$reply" +ACK; else say "$reply" '-NAK {"delay":1000000000}'; fi
  kill "$busy" 2>/dev/null
done
