// Package agenttest tests tools without NATS and agents without a model.
//
// [Run] runs one call of a tool as an executor does, after its arguments were read as the gate does. [Model] is a
// scripted model that fails the test when it is asked something that a provider would refuse. [CheckTranscript] and
// [CheckRequest] are its rules, for tests of other code that talks to models.
package agenttest
