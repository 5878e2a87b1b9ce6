package main

import "testing"

func TestQuantile(t *testing.T) {
	t.Parallel()
	few := []float64{1, 2, 3, 4}
	many := make([]float64, 2000)
	for i := range many {
		many[i] = float64(i + 1)
	}
	tests := []struct {
		values  []float64
		q, want float64
	}{
		{few, 0.5, 2},
		{few, 0.99, 4}, // the highest: nothing tells the two apart
		{many, 0.5, 1000},
		{many, 0.99, 1980},
		{[]float64{0.12345}, 0.5, 0.123},
	}
	for _, test := range tests {
		if got := quantile(test.values, test.q); got != test.want {
			t.Errorf("quantile %v of %d values = %v, want %v", test.q, len(test.values), got, test.want)
		}
	}
}
