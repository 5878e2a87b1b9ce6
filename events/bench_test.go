package events

import (
	"os"
	"testing"
)

// What a fact costs on its way out and in: one is made, read, validated and understood for every step of every run.

func BenchmarkFact(b *testing.B) {
	benchFact[RunStarted](b, "run.started")
	benchFact[StepFinished](b, "step.finished")
	benchFact[CallReleased](b, "call.released")
	benchFact[CallClaimed](b, "call.claimed")
	benchFact[CallFinished](b, "call.finished")
	benchFact[CallHeld](b, "call.held")
	benchFact[CallAnswered](b, "call.answered")
	benchFact[RunEnded](b, "run.ended")
}

func benchFact[T any](b *testing.B, name string) {
	b.Helper()
	payload, err := os.ReadFile("testdata/" + name + ".v1.json")
	if err != nil {
		b.Fatal(err)
	}
	e, err := Decode(payload)
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
	b.Run(name+"/make", func(b *testing.B) {
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
	b.Run(name+"/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeMsg(header, payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/validate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := ValidateData(e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name+"/understand", func(b *testing.B) {
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
