// Package imports holds the rules of the repository that a compiler does not: who may import whom, and a few
// habits of the source. It has tests only. The rules are data; the tests read the tree in their own process,
// so that go test sees every file they depend on and never reports a stale pass.
package imports
