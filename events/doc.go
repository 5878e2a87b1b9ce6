// Package events is what Weir says: every event with its data, every subject, key and name, the chains of facts and
// the guards of appends, canonical arguments, fingerprints and signatures. It does no I/O; package jetstream carries
// what is said here.
package events
