package events

import "testing"

// What a fact costs on its way out and in: one is made, read, validated and understood for every step of every run.

func BenchmarkFact(b *testing.B) {
	benchFact[RunStarted](b)
	benchFact[StepFinished](b)
	benchFact[CallReleased](b)
	benchFact[CallClaimed](b)
	benchFact[CallFinished](b)
	benchFact[CallHeld](b)
	benchFact[CallAnswered](b)
	benchFact[RunEnded](b)
}

func benchFact[T any](b *testing.B) {
	b.Helper()
	row, _ := RowOf(TypeOf[T]())
	e, err := Decode(compactFile(b, goldenFile(row)))
	if err != nil {
		b.Fatal(err)
	}
	data, err := Data[T](e)
	if err != nil {
		b.Fatal(err)
	}
	if err := ValidateData(e); err != nil {
		b.Fatal(err)
	}
	origin := &Origin{Namespace: "default", Service: "bench"}
	place := Namespace("default").Start(e.Subject)
	b.Run(row.Type+"/make", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := origin.Fact(place, data, e); err != nil {
				b.Fatal(err)
			}
		}
	})
	header, payload, err := EncodeMsg(e)
	if err != nil {
		b.Fatal(err)
	}
	b.Run(row.Type+"/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeMsg(header, payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(row.Type+"/validate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := ValidateData(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(row.Type+"/understand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Data[T](e); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkChunk(b *testing.B) {
	origin := &Origin{Namespace: "default", Service: "planner"}
	c := TextDeltaChunk("01a22abf-fc33-73b1-9ae6-d2822c2f9e86", PartText, "01a22abf-fc33-73b1-9ae6-d2822c2f9e87-0", "Order 42 was refunded.")
	b.ReportAllocs()
	for b.Loop() {
		EncodeChunk(origin, c)
	}
}
