#!/usr/bin/env bash
# Searches weir.pml with SPIN: the protocol must hold, and must break when a rule is taken away.
#
#   check.sh                    all searches, as a table; exit code 1 if one ends otherwise than expected
#   check.sh story -DFLAG ...   one search; prints its counterexample fact by fact, the shortest one for safety
#
# Needs spin and gcc. Works in a folder of its own and uses one core; a few minutes and up to 1 GB of memory.
set -euo pipefail

model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/weir.pml
for program in spin gcc; do
    command -v "$program" >/dev/null || { echo "check.sh: $program is missing (Debian: apt-get install spin gcc)" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$model" weir.pml

safe=(-DPLANNERS=2)
live=(-DLIVE)

# search FLAG...: one search; leaves pan.out, and a trail when it found something. A search for a mistake goes breadth
# first (SHORTEST=1), because its first story is then the shortest.
search() {
    rm -f pan* ./*.trail
    spin -a "$@" weir.pml >spin.out 2>&1 || { cat spin.out >&2; exit 2; }
    local compile=(-DSAFETY) run=(-m600000)
    [[ -z ${SHORTEST:-} ]] || compile+=(-DBFS)
    if [[ " $* " == *" -DLIVE "* ]]; then
        compile=(-DNFAIR=3) run=(-a -f -m1000000)
    fi
    gcc -O2 -w -DCOLLAPSE "${compile[@]}" -o pan pan.c
    ./pan "${run[@]}" >pan.out 2>&1 || true
}

# found: what the last search ended with, in one word.
found() {
    if grep -qE 'not completed|depth too small|out of memory|resource' pan.out && ! grep -q '^pan:1: ' pan.out; then
        echo incomplete
    elif grep -q '^pan:1: assertion violated' pan.out; then
        echo violated
    elif grep -q '^pan:1: acceptance cycle' pan.out; then
        echo cycle
    elif grep -q 'errors: 0' pan.out; then
        echo holds
    else
        echo unknown
    fi
}

# story FLAG...: the trail of the last search, fact by fact. Where a property fails, its name stands for SPIN's formula.
story() {
    local line
    { spin -t "$@" weir.pml 2>/dev/null || true; } | while IFS= read -r line; do
        case $line in
            *"Error: assertion violated"*) line=${line#*weir.pml:}; property "${line%%,*}" ;;
            *stores*|*"runs the tool"*|*CYCLE*) echo "${line#"${line%%[![:space:]]*}"}" ;;
        esac
    done
}

# property LINE: which property or situation the assertion at a line of the model is.
property() {
    head -n "$1" weir.pml | grep -oE '(HOLDS|SOMETIMES)\([0-9]+' | tail -n 1 |
        sed -e 's/HOLDS(/the next one violates S/' -e 's/SOMETIMES(/the next one reaches /'
}

failures=0

# expect WORD WHAT FLAG...: one row of the table.
expect() {
    local want=$1 what=$2 got states began=$SECONDS
    shift 2
    search "$@"
    got=$(found)
    states=$(awk '/states, stored/ { print $1; exit }' pan.out)
    printf '%-44s %-28s %-10s %12s %5ss\n' "$what" "$(meaning "$want" "$@")" "$got" "${states:-?}" "$((SECONDS - began))"
    if [[ $got != "$want" ]]; then
        failures=$((failures + 1))
        printf '  expected: %s; the flags were: %s\n' "$want" "$*"
        grep -E '^pan|errors:|Warning' pan.out | sed 's/^/  /' || true
        story "$@" | sed 's/^/  /'
    fi
}

# meaning WORD FLAG...: the expectation in terms of the README's properties.
meaning() {
    local want=$1 flag
    shift
    for flag; do
        case $flag in
            -DONLY=*) echo "S${flag#-DONLY=} is violated"; return ;;
            -DREACH=*) if [[ $want == holds ]]; then echo "${flag#-DREACH=} is never reached"; else echo "${flag#-DREACH=} is reached"; fi; return ;;
        esac
    done
    case $want in
        cycle) echo "L1 is violated" ;;
        *) if [[ " $* " == *" -DLIVE "* ]]; then echo "L1 holds"; else echo "S1 to S10 hold"; fi ;;
    esac
}

protocol() {
    expect holds "two copies of everything"               "${safe[@]}"
    expect holds "two steps"                              "${safe[@]}" -DTWO_STEPS
    expect holds "an idempotent tool"                     "${safe[@]}" -DIDEMPOTENT
    expect holds "old facts carried, one executor"        "${safe[@]}" -DTWO_STEPS -DCARRY -DEXECUTORS=1
    expect holds "every run ends, one executor"           "${live[@]}" -DEXECUTORS=1
    expect holds "every run ends, one gate, one crash"    "${live[@]}" -DGATES=1 -DCRASHES=1
    expect holds "every run ends, two steps"              "${live[@]}" -DTWO_STEPS
}

mistakes() {
    local SHORTEST=1 small=("${live[@]}" -DGATES=1 -DEXECUTORS=1 -DCRASHES=1)
    expect violated GO_ON_MAIN             "${safe[@]}" -DGO_ON_MAIN -DONLY=2
    expect violated END_FIRST              "${safe[@]}" -DEND_FIRST -DONLY=8
    expect violated MAIN_READ_LATE         "${safe[@]}" -DMAIN_READ_LATE -DONLY=8
    expect violated RESULT_UNGUARDED       "${safe[@]}" -DRESULT_UNGUARDED -DONLY=7
    expect violated RERUN                  "${safe[@]}" -DRERUN -DONLY=10
    expect violated PLANNER_IGNORES_CANCEL "${safe[@]}" -DPLANNER_IGNORES_CANCEL -DONLY=9
    expect violated FRESH_START            -DCARRY -DGATES=1 -DEXECUTORS=1 -DFRESH_START -DONLY=2
    expect violated COPY_UNGUARDED         -DCARRY -DEXECUTORS=1 -DCOPY_UNGUARDED -DONLY=3
    expect cycle    NO_HELP                "${small[@]}" -DNO_HELP
    expect cycle    LOSER_ACKS             "${small[@]}" -DLOSER_ACKS
    expect holds    "LOSER_ACKS, but a sweeper"  "${small[@]}" -DLOSER_ACKS -DSWEEP
    expect cycle    BY_CALL_ORDER          "${small[@]}" -DBY_CALL_ORDER
}

situations() {
    expect violated "a stale worker acts after main.end"        -DREACH=1
    expect violated "a second effect, after a retry"            -DREACH=2
    expect violated "both calls executed, the run completed"    -DREACH=3
    expect violated "a tombstone"                               -DREACH=4
    expect violated "asked again after an edit"                 -DREACH=5
    expect violated "cancelled while the tool runs"             -DREACH=6
    expect holds    "an effect of step 2 after a cancel in 1"   "${safe[@]}" -DTWO_STEPS -DREACH=7
    expect violated "the same, and PLANNER_IGNORES_CANCEL"      "${safe[@]}" -DTWO_STEPS -DREACH=7 -DPLANNER_IGNORES_CANCEL
    expect violated "completed, a settled call aged out"        -DCARRY -DEXECUTORS=1 -DREACH=8
    expect violated "unavailable although it was claimed"       -DIDEMPOTENT -DREACH=9
}

if [[ ${1:-} == story ]]; then
    shift
    SHORTEST=1 search "$@"
    found
    story "$@"
    exit
fi

printf '%-44s %-28s %-10s %12s %6s\n' search expected found states time
printf '\nthe protocol\n'
protocol
printf '\nwithout one of its rules\n'
mistakes
printf '\nsituations\n'
situations
printf '\n%s in %ss\n' "$([[ $failures == 0 ]] && echo "all as expected" || echo "$failures not as expected")" "$SECONDS"
[[ $failures == 0 ]]
