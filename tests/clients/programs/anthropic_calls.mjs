// Calls of Anthropic's client: argument 1 is a JSON list of cases; prints one JSON object, by the case's name.
import Anthropic from "@anthropic-ai/sdk";

const call = async ({ model, question, parameters: { stream, ...parameters }, token }) => {
  const client = new Anthropic(token === undefined ? {} : { apiKey: token });
  const body = { model, max_tokens: 50, messages: [{ role: "user", content: question }], ...parameters };
  if (stream) return await client.messages.stream(body).finalText();
  return (await client.messages.create(body)).content[0].text;
};
const outcomes = {};
for (const one of JSON.parse(process.argv[2])) {
  try {
    outcomes[one.name] = { text: await call(one) };
  } catch (error) {
    if (!(error instanceof Anthropic.APIError)) throw error;
    const code = error.error?.error?.code ?? error.error?.code ?? null;
    outcomes[one.name] = { error: error.constructor.name, status: error.status ?? null, code };
  }
}
console.log(JSON.stringify(outcomes));
