// Calls of OpenAI's client, all at once: argument 1 is a JSON list of cases; prints an object by their names.
import OpenAI from "openai";

const call = async ({ model, question, parameters, token, seconds }) => {
  // It counts from now: the interpreter may have started long after the test.
  const headers = seconds === null ? {} : { "x-quintain-deadline": String(Date.now() + 1000 * seconds) };
  const client = new OpenAI(token === undefined ? {} : { apiKey: token });
  const messages = [{ role: "user", content: question }];
  const said = await client.chat.completions.create({ model, messages, ...parameters }, { headers });
  if (!parameters.stream) return said.choices[0].message.content;
  let text = "";
  for await (const chunk of said) text += chunk.choices[0]?.delta.content ?? "";
  return text;
};
const outcome = async (one) => {
  try {
    return { text: await call(one) };
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    return { error: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
  }
};
const cases = JSON.parse(process.argv[2]);
const outcomes = await Promise.all(cases.map(async (one) => [one.name, await outcome(one)]));
console.log(JSON.stringify(Object.fromEntries(outcomes)));
