// Package events is what Weir says: every event with its data, every subject, key and name, the chains of facts and
// the guards of appends, canonical arguments, fingerprints and signatures. It does no I/O; package jetstream carries
// what is said here.
//
// README.md holds the catalogue of events as a table, and how a program in any language hosts tools. An event type is
// one JSON Schema in schemas/, one Go type, one row of [Catalog] and one golden in testdata/; the tests hold the four
// together. A field may be added, never renamed or given another meaning.
package events
