package agent

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type money struct {
	Amount int                `json:"amount"`
	Lines  []line             `json:"lines"`
	By     map[string]*line   `json:"by"`
	Any    any                `json:"any"`
	Price  float64            `json:"price"`
	Opt    *uint8             `json:"opt"`
	Map    map[string]float32 `json:"map"`
}

type line struct {
	SKU string `json:"sku"`
	N   int64
}

func TestDecodeKeepsDigitsAndCase(t *testing.T) {
	t.Parallel()
	var got money
	err := decode(json.RawMessage(`{"amount":5.0,"AMOUNT":50000,"lines":[{"sku":"a","SKU":"b","N":2e2,"n":7}],
		"by":{"Amount":{"sku":"c","Sku":"d"}},"any":{"n":9007199254740993},"price":1.50,"opt":3.0,"Opt":4,"map":{"x":1.0}}`), &got)
	if err != nil {
		t.Fatal(err)
	}
	opt := uint8(3)
	want := money{
		Amount: 5, Lines: []line{{SKU: "a", N: 200}}, By: map[string]*line{"Amount": {SKU: "c"}},
		Any: map[string]any{"n": json.Number("9007199254740993")}, Price: 1.5, Opt: &opt, Map: map[string]float32{"x": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Only the exact name fills a field: what a rule reads as args.amount is what the handler gets.
func TestDecodeNeverFillsAFieldByAnotherSpelling(t *testing.T) {
	t.Parallel()
	for _, args := range []string{`{"AMOUNT":5}`, `{"Amount":5}`, `{"Amount":5,"aMOUNT":6}`} {
		var got money
		if err := decode(json.RawMessage(args), &got); err != nil || got.Amount != 0 {
			t.Errorf("%s: %d, %v", args, got.Amount, err)
		}
	}
}

func TestDecodeRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, args := range []string{`{"amount":1.5}`, `{"amount":99999999999999999999}`, `{"opt":256}`, `{"opt":-1}`, `[]`, `"x"`} {
		var got money
		if err := decode(json.RawMessage(args), &got); err == nil {
			t.Errorf("%s: want an error, got %+v", args, got)
		}
	}
}

func TestDecodeIntoAnything(t *testing.T) {
	t.Parallel()
	var v any
	if err := decode(json.RawMessage(`{"A":1.0}`), &v); err != nil || v.(map[string]any)["A"] != json.Number("1.0") {
		t.Errorf("%v, %v", v, err)
	}
	var raw json.RawMessage
	if err := decode(json.RawMessage(`{"A":1.0}`), &raw); err != nil || string(raw) != `{"A":1.0}` {
		t.Errorf("%s, %v", raw, err)
	}
	var m map[string]any
	if err := decode(json.RawMessage(`{"A":1.0}`), &m); err != nil || m["A"] != json.Number("1.0") {
		t.Errorf("%v, %v", m, err)
	}
}
