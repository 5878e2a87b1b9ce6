// Reads messages with the npm package cloudevents and writes them again. Each line of the standard input is a message,
// {"headers":{…},"body":"…"}; for each it prints one line: the event, and the messages that the package makes of it in
// both modes, or why it does not take the message.
import { createInterface } from "node:readline";
import { HTTP } from "cloudevents";

const wire = ({ headers, body }) => ({ headers, body: typeof body === "string" ? body : JSON.stringify(body) });

for await (const line of createInterface({ input: process.stdin })) {
  try {
    const event = HTTP.toEvent(JSON.parse(line));
    event.validate();
    console.log(JSON.stringify({ event, structured: wire(HTTP.structured(event)), binary: wire(HTTP.binary(event)) }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
