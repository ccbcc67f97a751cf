// Calls of Anthropic's client, all at once: argument 1 is a JSON list of cases; prints an object by their names.
import Anthropic from "@anthropic-ai/sdk";

const call = async ({ model, question, parameters: { stream, ...parameters }, token, seconds }) => {
  // It counts from now: the interpreter may have started long after the test.
  const headers = seconds === null ? {} : { "x-quintain-deadline": String(Date.now() + 1000 * seconds) };
  const client = new Anthropic(token === undefined ? {} : { apiKey: token });
  const body = { model, max_tokens: 50, messages: [{ role: "user", content: question }], ...parameters };
  if (stream) return await client.messages.stream(body, { headers }).finalText();
  return (await client.messages.create(body, { headers })).content[0].text;
};
const outcome = async (one) => {
  try {
    return { text: await call(one) };
  } catch (error) {
    if (!(error instanceof Anthropic.APIError)) throw error;
    const code = error.error?.error?.code ?? error.error?.code ?? null;
    return { error: error.constructor.name, status: error.status ?? null, code };
  }
};
const cases = JSON.parse(process.argv[2]);
const outcomes = await Promise.all(cases.map(async (one) => [one.name, await outcome(one)]));
console.log(JSON.stringify(Object.fromEntries(outcomes)));
