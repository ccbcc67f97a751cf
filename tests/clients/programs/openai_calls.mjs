// Calls of OpenAI's client: argument 1 is a JSON list of cases; prints one JSON object, by the case's name.
import OpenAI from "openai";

const call = async ({ model, question, parameters, token }) => {
  const client = new OpenAI(token === undefined ? {} : { apiKey: token });
  const messages = [{ role: "user", content: question }];
  const said = await client.chat.completions.create({ model, messages, ...parameters });
  if (!parameters.stream) return said.choices[0].message.content;
  let text = "";
  for await (const chunk of said) text += chunk.choices[0]?.delta.content ?? "";
  return text;
};
const outcomes = {};
for (const one of JSON.parse(process.argv[2])) {
  try {
    outcomes[one.name] = { text: await call(one) };
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    outcomes[one.name] = { error: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
  }
}
console.log(JSON.stringify(outcomes));
