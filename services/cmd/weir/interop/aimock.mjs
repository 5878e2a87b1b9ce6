// Starts aimock, a mock of model providers, on a free port of this machine with the fixtures of a JSON file, and prints
// its address as one line. It ends when its standard input does, and so with the test that started it.
//
//   node aimock.mjs fixtures.json
import { readFileSync } from "node:fs";
import { LLMock } from "@copilotkit/aimock";

const { fixtures } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const mock = new LLMock({ host: "127.0.0.1", port: 0, strict: true });
for (const fixture of fixtures) mock.addFixture(fixture);
await mock.start();
console.log(mock.url);
process.stdin.resume();
process.stdin.on("end", async () => {
  await mock.stop();
  process.exit(0);
});
