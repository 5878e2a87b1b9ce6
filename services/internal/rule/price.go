package rule

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// The functions that are priced or guarded by name.
const (
	fnMatches     = "matches"
	fnReplace     = "replace"
	fnJoin        = "join"
	fnFormat      = "format"
	fnSplit       = "split"
	fnIndexOf     = "indexOf"
	fnLastIndexOf = "lastIndexOf"
)

// measure sizes values; it stops, and takes the value for too large, at the limits.
var measure = types.NewSizeCalculator(
	types.SizeCalculatorMaxDepth(maxNesting),
	types.SizeCalculatorMaxTraversal(maxElements),
	types.SizeCalculatorStringUnitLength(unit))

// prices is the cost model: a step costs 1 and the text or elements it has to look at.
type prices struct{}

// smallPrices spares an allocation: CEL wants a pointer for each step.
var smallPrices = func() (p [64]uint64) {
	for i := range p {
		p[i] = uint64(i)
	}
	return p
}()

// CallCost prices one step after it was taken; what must not be taken is guarded.
func (prices) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	if types.IsError(result) {
		return &smallPrices[1] // refused, by a guard or by CEL: nothing was done
	}
	cost := 1 + textUnits(result)
	for _, arg := range args {
		cost += textUnits(arg)
	}
	switch function {
	case operators.Equals, operators.NotEquals:
		cost += elements(args[0]) + elements(args[1])
	case operators.In:
		if _, isMap := args[1].(traits.Mapper); !isMap { // a key is looked up, a list is searched
			cost += elements(args[1])
		}
	case fnIndexOf, fnLastIndexOf: // every character is compared with every other
		cost += uint64(len(text(args[0]))) * uint64(len(text(args[1]))) / unit
	case fnSplit: // the pieces are allocated one by one
		cost += uint64(len(text(args[0]))) / 8
	case fnMatches:
		// A pattern multiplies what each character costs.
		cost += textUnits(args[0]) * (4 + uint64(len(text(args[1])))/2)
	}
	if cost < uint64(len(smallPrices)) {
		return &smallPrices[cost]
	}
	return &cost
}

// elements is the size of a list or map with all that is in it, 0 for everything else.
func elements(v ref.Val) uint64 {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return uint64(measure.AggregateSize(v))
	}
	return 0
}

// textUnits is the size of a text, 0 for everything else.
func textUnits(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return uint64(len(v)) / unit
	case types.Bytes:
		return uint64(len(v)) / unit
	}
	return 0
}

func text(v ref.Val) string {
	s, _ := v.(types.String)
	return string(s)
}
