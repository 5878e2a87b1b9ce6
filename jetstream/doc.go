// Package jetstream carries what package events says: it is the only place that talks to NATS. Facts are appended to
// chains under guards, read back from the leader and consumed by durables; chunks, snapshots, definitions, timers and
// dead letters have a store each.
//
//	conn, err := jetstream.Connect(ctx, jetstream.Options{URL: "nats://127.0.0.1:4222", Name: "planner"})
//	if err != nil {
//		return err
//	}
//	defer conn.Close()
//	done, err := conn.Append(ctx, events.After(ask), answer)
//	switch {
//	case err != nil: // undecided: deliver again
//	case done.Outcome == jetstream.Stored: // done.Last is ours
//	case done.Outcome == jetstream.Lost: // done.Last is what came instead: help on from there
//	case done.Outcome == jetstream.Gone: // the chain has aged out
//	}
//
// Streams of a namespace, as weir_<ns>_<name>, with P for weir.<ns>:
//
//	inbox    P.in.>                      work queue     requests of untrusted writers, apart from facts
//	runs     P.put.> stored as P.>       retention      the log: facts of runs and grants, the only truth
//	chunks   P.chunk.*                   a day          what readers watch, republished as P.live.<run>
//	timers   P.timer.>                   for ever       message schedules; only the gate touches them
//	threads  P.thread.>                  for ever       conversations
//	audit    sourced from runs           90 days        the record, folded into 16 subjects
//	dead     P.dead.*.*                  for ever       what was given up, for people
//
// Buckets: suspended (snapshots), registry (definitions and live processes), tasks, grants, blobs. They are made as
// plain streams, because a bucket as the client makes it lets any writer of one key wipe the others.
//
// Requests that a micro service answers are stored nowhere (Serve, Ask); what must survive of one is stored before its
// reply (StoreRequest). Services of others are asked by Request, which never speaks on a subject of Weir or of the server.
package jetstream
