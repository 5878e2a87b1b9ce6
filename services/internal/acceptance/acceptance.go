// Package acceptance shows which test stands for which row of the promised behaviour. It has tests only.
//
// rows.txt lists the rows, one line each: the id and what it promises. A test stands for a row when its name holds the
// row's id with an underscore for the dot: TestB8_16FirstAnswerWins, TestB8_16_B8_17Races, TestB7_3to8Precedence,
// TestB2_10And13Prefixes. So does a story (testdata/*.txtar) whose prose holds it as it is: (B8.16). later.txt
// lists the rows that wait, and for what; a row leaves it with its test. table.md is made of all by
// `go test ./services/internal/acceptance -update`.
package acceptance
