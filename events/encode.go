package events

import (
	"encoding/json"
	"fmt"

	ce "github.com/cloudevents/sdk-go/v2/event"
)

// Encode is the structured JSON form of an event, checked against the rules of CloudEvents 1.0.
func Encode(e Event) ([]byte, error) {
	c := ce.New()
	c.SetID(e.ID)
	c.SetType(e.Type)
	c.SetSource(e.Source)
	c.SetSubject(e.Subject)
	c.SetTime(e.Time.UTC())
	for name, v := range map[string]string{
		"partitionkey": e.PartitionKey, "correlationid": e.CorrelationID, "causationid": e.CausationID,
		"traceparent": e.TraceParent, "authid": e.AuthID, "authtype": e.AuthType, "dataref": e.DataRef,
	} {
		if v != "" {
			c.SetExtension(name, v)
		}
	}
	if !e.ExpiryTime.IsZero() {
		c.SetExtension("expirytime", e.ExpiryTime.UTC())
	}
	for name, v := range e.Extensions {
		c.SetExtension(name, v)
	}
	if err := c.SetData("application/json", e.Data); err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.Type, err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.Type, err)
	}
	return json.Marshal(c)
}
