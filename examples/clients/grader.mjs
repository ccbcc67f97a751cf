// A grader in JavaScript with nothing but `fetch`, under AgentV's contract: it reads a case on stdin, asks a judge,
// and prints its verdict. `quintain run` and AgentV start it alike, with the session's address and token.
import { readFileSync } from "node:fs";

const { AGENTV_TARGET_PROXY_URL: url, AGENTV_TARGET_PROXY_TOKEN: token } = process.env;

/** Ask the target that judges; a call counts against this grader's budget. */
async function invoke(question) {
  const response = await fetch(`${url}/invoke`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify({ question }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.rawText.trim();
}

const graded = JSON.parse(readFileSync(0, "utf8"));
const text = typeof graded.output === "string" ? graded.output : JSON.stringify(graded.output);
const said = await invoke(`Expected: ${graded.criteria}\nAnswer: ${text}\nDoes the answer say so? Reply with yes or no.`);
const passed = said.toLowerCase().startsWith("yes");
console.log(JSON.stringify({ score: passed ? 1 : 0, assertions: [{ text: `the judge said ${said}`, passed }] }));
