package events

import "slices"

// What may follow what in a chain, by kinds. The formal model (jetstream/model) proves the protocol of which this table
// is the alphabet; the log checker of the tests applies it to every log that they write. "" stands for an empty chain.
var follows = map[Kind][]Kind{
	KindAsk:     {KindAnswer, KindResult, KindAsk}, // an ask again: carried, or asked of more people
	KindAnswer:  {KindGo, KindResult, KindAsk},     // ask: an edit that must be approved
	KindGo:      {KindClaim, KindResult, KindGo},   // go again: carried; result: nobody claimed it, or cancelled
	KindClaim:   {KindResult, KindSuspend, KindClaim, KindAsk},
	KindSuspend: {KindAsk, KindResult},
	KindResult:  {},

	KindStart: {KindStep, KindCarry, KindEnd},
	KindStep:  {KindStep, KindCarry, KindEnd},
	KindCarry: {KindStep, KindCarry, KindEnd},
	KindEnd:   {},
}

// first are the kinds that may begin a chain: of a call, and of a run (an end is the tombstone of a run that has not
// started).
var first = []Kind{KindAsk, KindGo, KindResult, KindStart, KindEnd}

// MayFollow reports whether a fact of kind next may follow one of kind prev in the same chain.
func MayFollow(prev, next Kind) bool {
	if prev == "" {
		return slices.Contains(first, next)
	}
	return slices.Contains(follows[prev], next)
}
