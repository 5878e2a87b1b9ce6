/*
 * The protocol of Weir's log, as a model that SPIN searches exhaustively. README.md says what it covers, how to read a
 * counterexample, and which file of the code each part stands for. check.sh runs it.
 *
 * The log. A chain is a list of facts, and an append names the fact that it follows; the server refuses it if that is
 * no longer the last one. Since no rule looks further back than the last fact, the model keeps only that, and needs no
 * sequence numbers: when a fact is stored, every append under way that named its predecessor is struck out.
 *
 * The services. A copy of a service does two things, and may sleep for as long as it likes between them:
 *
 *      read        look at the log, because of some delivery, and decide which fact should follow
 *      append      the fact is stored, or it was struck out; or the copy dies and forgets everything
 *
 * Deliveries are not messages here. A copy may act on any last fact at any time and any number of times, after an
 * acknowledgement too. That is more than the server ever does, so nothing proved here leans on acknowledgements.
 *
 * The story. One run with two calls. A rule may release call 0, and may say something else each time it is asked; call 1
 * always needs people. Tools have effects (with -DIDEMPOTENT that of call 0 is idempotent) and may suspend themselves.
 */

/* ---- sizes and switches ---- */

#ifndef PLANNERS
#define PLANNERS        1
#endif
#ifndef GATES
#define GATES           2
#endif
#ifndef EXECUTORS
#define EXECUTORS       2
#endif
#define COPIES          (PLANNERS + GATES + EXECUTORS)

#define MAIN            2       /* chains 0 and 1 belong to the calls, chain 2 is the run's own */
#define HELD            1       /* the call that only people may release */

#ifdef IDEMPOTENT
#define REPEATABLE(c)   (c == 0)
#else
#define REPEATABLE(c)   false
#endif
#ifdef CARRY                    /* facts grow old: what still waits is stored again, what is settled may go */
#define COPIED          true
#else
#define COPIED          false
#endif

/* With -DONLY=n one property alone is checked; with -DREACH=n none is, and reaching situation n is the error. */
#ifndef REACH
#define REACH           0
#endif
#ifndef ONLY
#define ONLY            0
#endif
#define HOLDS(n, x)     assert((x) || REACH != 0 || (ONLY != 0 && ONLY != n))
#define SOMETIMES(n, x) assert(!(REACH == n && (x)))

/* Each of the following switches takes one rule away. The search must then find a violation. */
#ifdef GO_ON_MAIN               /* away: a release is guarded by the chain of its call */
#define GUARD(ch, k)    (k == go -> MAIN : ch)
#else
#define GUARD(ch, k)    ch
#endif
#ifdef BY_CALL_ORDER            /* away: the result with the highest sequence goes on, whichever call it is of */
#define HIGHEST         1
#else
#define HIGHEST         highest
#endif
#ifdef END_FIRST                /* away: a cancel closes the calls, then the run */
#define MAY_END         true
#else
#define MAY_END         ALL_CLOSED
#endif
#ifdef PLANNER_IGNORES_CANCEL   /* away: no turn is taken on a result that a cancel has written */
#define CANCEL_SEEN     false
#else
#define CANCEL_SEEN     (OUTCOME(0) == closed || OUTCOME(1) == closed)
#endif
#ifdef NO_HELP                  /* away: whoever finds an answer without its consequence appends it */
#define HELP            false
#else
#define HELP            true
#endif
#ifdef FRESH_START              /* away: an empty chain is begun only if the head of main has the call open */
#define UNBEGUN(c)      (known[c] && last[c] == none)
#else
#define UNBEGUN(c)      (known[c] && last[c] == none && kept[c] == none)
#endif
/* ... and further down: MAIN_READ_LATE, RESULT_UNGUARDED, COPY_UNGUARDED, RERUN, LOSER_ACKS. */

/* Safety is searched in the widest world. Liveness (-DLIVE) needs a fairer one: a bounded number of crashes, edits and
 * suspensions, a cancel that comes or never comes, no sweeper, and the two acknowledgements that could lose a run. */
#ifdef LIVE
#ifndef CRASHES
#define CRASHES         2
#endif
byte crashes = CRASHES;
byte patience = 1;              /* edits and suspensions still to come */
byte highest;                   /* the call whose result has the highest sequence */
bool cancelAsked, resultAcked[2], goAcked[3];
#define MAY_DIE         crashes > 0
#define DIE             crashes--
#define PATIENCE        patience > 0
#define CANCEL_ASKED    cancelAsked
#define GO_DUE(c)       !goAcked[c]
#define RESULT_DUE      !resultAcked[HIGHEST]
#ifdef SWEEP
#define SWEEPER         true
#else
#define SWEEPER         false
#endif
#else
#define MAY_DIE         true
#define DIE             skip
#define PATIENCE        true
#define CANCEL_ASKED    true
#define GO_DUE(c)       true
#define RESULT_DUE      true
#define SWEEPER         true
#endif

/* ---- the log ---- */

#define none            0

mtype = {
    start, step, carry, completed, cancelled,           /* main; the last two are main.end */
    ask, ask_suspended, ask_in_doubt,                   /* a question to people, and why it is asked */
    approve, resume, retry, edit,                       /* answers after which the call goes on */
    decline, respond, expired,                          /* answers that end it */
    go, claim,
    suspend, in_doubt,                                  /* the tool stops itself; its worker is gone */
    done, denied, closed                                /* results: executed, never executed, cancelled */
};

mtype last[3];                  /* the last fact of each chain */
bool  known[2];                 /* a step on main asks for this call */
mtype kept[2];                  /* result that the newest carry holds, so that its own chain may age out */

#define IS_ASK(k)       (k == ask || k == ask_suspended || k == ask_in_doubt)
#define IS_YES(k)       (k == approve || k == resume || k == retry)
#define IS_NO(k)        (k == decline || k == respond || k == expired)
#define IS_RESULT(k)    (k == done || k == denied || k == closed)
#define IS_END(k)       (k == completed || k == cancelled)
#define IS_TURN(k)      (k == step || k == carry)

#define ENDED           IS_END(last[MAIN])
#define OUTCOME(c)      (kept[c] != none -> kept[c] : last[c])
#define OPEN(c)         (known[c] && !IS_RESULT(OUTCOME(c)))
#define ALL_CLOSED      (!OPEN(0) && !OPEN(1))

/* Beside the log, for the properties alone. */
byte effects[2];                /* how often the tool acted on the world */
byte retries[3];                /* answers `retry` that were stored */

/* ---- the properties, looked at whenever a fact is stored ---- */

inline check(ch, k) {
    HOLDS(1, !ENDED);                                           /* nothing follows main.end */
    HOLDS(2, !IS_RESULT(last[ch])                               /* nothing follows a result, */
             && (ch == MAIN || kept[ch] == none));              /* not even one that has aged out */
    /* a call begins, and begins again after an edit, with exactly one of ask, go and result; call HELD is
     * released only by an approving answer */
    HOLDS(3, k != ask || last[ch] == none || last[ch] == edit || last[ch] == ask && COPIED);
    HOLDS(3, k != go || IS_YES(last[ch])
             || (ch != HELD && (last[ch] == none || last[ch] == edit)));
    HOLDS(3, k != denied || last[ch] == none || last[ch] == go || IS_NO(last[ch])
             || (last[ch] == claim && REPEATABLE(ch)));
    /* an answer follows an ask of its kind, so each ask has at most one */
    HOLDS(4, k != approve && k != edit || last[ch] == ask);
    HOLDS(4, k != resume || last[ch] == ask_suspended);
    HOLDS(4, k != retry || last[ch] == ask_in_doubt);
    HOLDS(4, !IS_NO(k) || IS_ASK(last[ch]));
    /* an ask after the claim says what happened: the tool suspended itself, or nobody knows */
    HOLDS(5, k != ask_suspended || last[ch] == suspend || last[ch] == k && COPIED);
    HOLDS(5, k != ask_in_doubt || last[ch] == in_doubt || last[ch] == k && COPIED
             || (last[ch] == claim && !REPEATABLE(ch)));
    /* a release is claimed once, unless the tool may be repeated */
    HOLDS(6, k != claim || last[ch] == go || (last[ch] == claim && REPEATABLE(ch)));
    /* an outcome belongs to the claim that it follows: the worker of an older claim is fenced */
    HOLDS(7, k != done && k != suspend && k != in_doubt || last[ch] == claim);
    /* at main.end every call of every step has its result */
    HOLDS(8, !IS_END(k) || ALL_CLOSED);
    /* once a cancel has closed a call, the run neither turns nor completes */
    HOLDS(9, k != step && k != completed || (OUTCOME(0) != closed && OUTCOME(1) != closed));

    SOMETIMES(3, k == completed && last[0] == done && last[1] == done);
    SOMETIMES(4, k == cancelled && last[MAIN] == none);
    SOMETIMES(5, k == ask && last[ch] == edit);
    SOMETIMES(6, k == closed && last[ch] == claim);
    SOMETIMES(8, k == completed && last[0] == none && kept[0] == done);
    SOMETIMES(9, k == denied && last[ch] == claim);
}

inline act(c) {
    SOMETIMES(1, ENDED);
    SOMETIMES(2, effects[c] == 1);
    SOMETIMES(7, c == 1 && last[0] == closed);
    if
    :: REPEATABLE(c)
    :: else -> effects[c]++
    fi;
    printf("%d runs the tool of call %d\n", _pid, c);
    HOLDS(10, effects[c] <= 1 + retries[c])                     /* one effect, and one more for each retry */
}

/* ---- jetstream/append.go ---- */

typedef Append { byte chain; mtype what; byte guard };
Append out[COPIES];             /* the append under way of each copy, if it has one */

#define IDLE            (out[_pid].what == none)
#define PROPOSED        (out[_pid].what != none)

inline propose(ch, k) {
    out[_pid].chain = ch; out[_pid].what = k; out[_pid].guard = GUARD(ch, k)
}

inline strike(n) {
    out[n].chain = 0; out[n].what = none; out[n].guard = 0
}

inline strike_all(ch) {         /* all that name a fact of this chain which is no longer the last */
    for (i : 0 .. COPIES - 1) {
        if
        :: out[i].what != none && out[i].guard == ch -> strike(i)
        :: else
        fi
    }
    i = 0
}

inline store(ch, k) {
    check(ch, k);
    last[ch] = k;
    printf("%d stores in chain %d: %e\n", _pid, ch, k);
    strike_all(ch);
    if
    :: k == retry -> retries[ch]++
#ifdef LIVE
    :: IS_RESULT(k) -> highest = ch
    :: k == go -> goAcked[ch] = false
    :: (k == edit || k == suspend) && patience > 0 -> patience--
#endif
    :: else
    fi
}

/* ---- services/planner ---- */

#define SETTLED         (IS_TURN(last[MAIN]) && ALL_CLOSED && RESULT_DUE)

active [PLANNERS] proctype planner() {
    byte i, ch; mtype k;
#ifdef CARRY
    mtype seen[2];              /* results that the carry under way will hold */
#endif
end:
    do
    /* a start request; a run id is used once */
    :: atomic { IDLE && last[MAIN] == none -> propose(MAIN, start) }
    /* the first turn: it asks for calls, or for nothing */
    :: atomic { IDLE && last[MAIN] == start -> propose(MAIN, step) }
    :: atomic { IDLE && last[MAIN] == start -> propose(MAIN, completed) }
    /* every call has its result and this is the highest of them: the next turn */
    :: atomic { IDLE && SETTLED && !CANCEL_SEEN -> propose(MAIN, completed) }
#ifdef TWO_STEPS
    :: atomic { IDLE && SETTLED && !CANCEL_SEEN && !known[1] -> propose(MAIN, step) }
#endif
    /* a cancel has closed a call: no turn, but help to end the run */
    :: atomic { IDLE && SETTLED && CANCEL_SEEN -> propose(MAIN, cancelled) }
#ifdef CARRY
    /* sweep.go: the run is getting old, its state is stored again with the results known so far */
    :: atomic { IDLE && IS_TURN(last[MAIN]) ->
        if :: IS_RESULT(OUTCOME(0)) -> seen[0] = OUTCOME(0) :: else fi;
        if :: IS_RESULT(OUTCOME(1)) -> seen[1] = OUTCOME(1) :: else fi;
        propose(MAIN, carry) }
#endif

    :: atomic { PROPOSED ->
        k = out[_pid].what; strike(_pid);
        store(MAIN, k);
        if
#ifdef TWO_STEPS
        :: k == step && !known[0] -> known[0] = true            /* call 0 in the first step */
        :: k == step && known[0] -> known[1] = true             /* call 1 in the second */
#else
        :: k == step -> known[0] = true; known[1] = true        /* both in one step */
#endif
#ifdef CARRY
        :: k == carry -> kept[0] = seen[0]; kept[1] = seen[1]
#endif
        :: else
        fi;
#ifdef CARRY
        seen[0] = none; seen[1] = none;
#endif
        k = none }
    :: atomic { PROPOSED && MAY_DIE -> DIE; strike(_pid) }
#ifdef CARRY
    :: atomic { IDLE && seen[0] + seen[1] > 0 -> seen[0] = none; seen[1] = none }   /* struck out, or died */
#endif
#ifdef LIVE
    /* a result that is not the one to go on, or leaves the step open: read now, acknowledged some time later */
    :: atomic { IDLE && IS_RESULT(last[0]) && !resultAcked[0] && (OPEN(1) || HIGHEST == 1) -> ch = 0 }
       resultAcked[ch] = true; ch = 0
    :: atomic { IDLE && IS_RESULT(last[1]) && !resultAcked[1] && (OPEN(0) || HIGHEST == 0) -> ch = 1 }
       resultAcked[ch] = true; ch = 0
#endif
    od
}

/* ---- services/approval ---- */

/* What may follow the last fact of call c. A handler and the sweeper go by the same rules. */
#define GATE_RULES(c) \
    /* gate.go: blocked or invalid, held, released by a rule */ \
    :: atomic { IDLE && UNBEGUN(c) -> propose(c, denied) } \
    :: atomic { IDLE && UNBEGUN(c) -> propose(c, ask) } \
    :: atomic { IDLE && UNBEGUN(c) && c != HELD -> propose(c, go) } \
    /* decide.go and expire.go: people and timers, about exactly this ask */ \
    :: atomic { IDLE && last[c] == ask -> propose(c, approve) } \
    :: atomic { IDLE && last[c] == ask && PATIENCE -> propose(c, edit) } \
    :: atomic { IDLE && last[c] == ask_suspended -> propose(c, resume) } \
    :: atomic { IDLE && last[c] == ask_in_doubt && retries[c] == 0 -> propose(c, retry) } \
    :: atomic { IDLE && IS_ASK(last[c]) -> propose(c, decline) } \
    :: atomic { IDLE && IS_ASK(last[c]) -> propose(c, respond) } \
    :: atomic { IDLE && IS_ASK(last[c]) -> propose(c, expired) } \
    /* follow.go: the consequence of an answer, whoever stored it */ \
    :: atomic { IDLE && HELP && IS_YES(last[c]) -> propose(c, go) } \
    :: atomic { IDLE && HELP && IS_NO(last[c]) -> propose(c, denied) } \
    /* gate.go: edited arguments are ruled again */ \
    :: atomic { IDLE && last[c] == edit -> propose(c, ask) } \
    :: atomic { IDLE && last[c] == edit && c != HELD -> propose(c, go) } \
    /* ask.go and doubt.go */ \
    :: atomic { IDLE && last[c] == suspend -> propose(c, ask_suspended) } \
    :: atomic { IDLE && last[c] == in_doubt -> propose(c, ask_in_doubt) } \
    /* sweep.go: never claimed; claimed and the worker gone, no executor left to say so; past its deadline */ \
    :: atomic { IDLE && SWEEPER && last[c] == go -> propose(c, denied) } \
    :: atomic { IDLE && SWEEPER && last[c] == claim && !REPEATABLE(c) -> propose(c, ask_in_doubt) } \
    :: atomic { IDLE && SWEEPER && last[c] == claim && REPEATABLE(c) -> propose(c, denied) } \
    /* cancel.go: the calls first */ \
    :: atomic { IDLE && CANCEL_ASKED && OPEN(c) -> propose(c, closed) } \
    COPIES_OF(c)

/* sweep.go: an ask that waits for long is stored again, so that it does not age out */
#ifdef CARRY
#ifdef COPY_UNGUARDED           /* away: a copy names the fact that it repeats */
#define COPIES_OF(c) \
    :: atomic { IDLE && IS_ASK(last[c]) -> ch = c; k = last[c] } \
       atomic { store(ch, k); ch = 0; k = none }
#else
#define COPIES_OF(c) \
    :: atomic { IDLE && IS_ASK(last[c]) -> propose(c, last[c]) }
#endif
#else
#define COPIES_OF(c)
#endif

active [GATES] proctype gate() {
    byte i, ch; mtype k;
end:
    do
    GATE_RULES(0)
    GATE_RULES(1)
    /* cancel.go: then the run; a run that has not begun gets its end as a tombstone */
    :: atomic { IDLE && CANCEL_ASKED && !ENDED && MAY_END -> propose(MAIN, cancelled) }
#ifdef MAIN_READ_LATE           /* away: a cancel reads the head of main before it looks at the calls */
    :: atomic { IDLE && CANCEL_ASKED && !ENDED && MAY_END -> ch = MAIN }
       atomic { if :: !ENDED -> propose(MAIN, cancelled) :: else fi; ch = 0 }
#endif

    :: atomic { PROPOSED ->
        k = out[_pid].what; ch = out[_pid].chain; strike(_pid);
        store(ch, k);
        if                                                      /* an answer: at once on to its consequence */
        :: IS_YES(k) -> propose(ch, go)
        :: IS_NO(k) -> propose(ch, denied)
        :: else
        fi;
        k = none; ch = 0 }
    :: atomic { PROPOSED && MAY_DIE -> DIE; strike(_pid) }
    od
}

/* ---- services/toolexecutor ---- */

#define EXECUTOR_RULES(c) \
    :: atomic { IDLE && last[c] == go && GO_DUE(c) -> propose(c, claim) } \
    REDELIVERED(c)

/* The same release once more: claimed, no outcome, and the lease is over (in the model, at any time). */
#ifdef RERUN                    /* away: an effectful call that was claimed is not run again */
#define REDELIVERED(c) \
    :: atomic { IDLE && last[c] == claim -> propose(c, done); ch = c; goto claimed }
#else
#ifdef LOSER_ACKS               /* away: a release that another worker has claimed is not acknowledged */
#define REDELIVERED(c) \
    :: atomic { IDLE && last[c] == claim && GO_DUE(c) -> goAcked[c] = true }
#else
#define REDELIVERED(c) \
    :: atomic { IDLE && last[c] == claim && GO_DUE(c) && REPEATABLE(c) -> propose(c, claim) } \
    :: atomic { IDLE && last[c] == claim && GO_DUE(c) && !REPEATABLE(c) -> propose(c, in_doubt) }
#endif
#endif

active [EXECUTORS] proctype executor() {
    byte i, ch; mtype k;
end:
    do
    EXECUTOR_RULES(0)
    EXECUTOR_RULES(1)

    :: atomic { PROPOSED ->
        k = out[_pid].what; ch = out[_pid].chain; strike(_pid);
        store(ch, k);
        if
        :: k == claim ->
            k = none;
            propose(ch, done);                                  /* what comes of it names this claim */
            goto claimed
        :: else -> k = none; ch = 0
        fi }
    :: atomic { PROPOSED && MAY_DIE -> DIE; strike(_pid) }
    od;
claimed:                                                        /* from here on it may sleep and be overtaken */
    if
    :: atomic { act(ch) }
    :: atomic { PROPOSED && PATIENCE -> propose(ch, suspend) }  /* the tool stops itself before its effect */
    :: atomic { MAY_DIE -> DIE; goto idle }
    fi;
    if
    :: atomic { PROPOSED -> k = out[_pid].what; strike(_pid); store(ch, k); k = none }
    :: atomic { IDLE ->                                         /* overtaken: its outcome is a `late` fact, no state */
#ifdef RESULT_UNGUARDED         /* away: a result has a guard like every other fact */
        store(ch, done)
#else
        skip
#endif
      }
    :: atomic { MAY_DIE -> DIE }
    fi;
idle:
    atomic { strike(_pid); ch = 0; goto end }
}

/* ---- the world ---- */

#ifdef CARRY
/* A settled chain grows old and is gone, once a carry holds its result. The retention is days and a handler's deadline
 * is seconds, so no append that named a fact of this chain is still under way. */
active proctype retention() {
    byte i;
end:
    do
    :: atomic { IS_RESULT(last[0]) && kept[0] != none && IS_TURN(last[MAIN]) -> last[0] = none; strike_all(0) }
    :: atomic { IS_RESULT(last[1]) && kept[1] != none && IS_TURN(last[MAIN]) -> last[1] = none; strike_all(1) }
    od
}
#endif

#ifdef LIVE
active proctype client() {
    if
    :: cancelAsked = true
    :: skip
    fi
}

ltl ends { <> ENDED }           /* every run ends */
#endif
