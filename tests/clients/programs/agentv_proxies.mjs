// AgentV's own proxies, as its code grader starts them: one for each entry of the list in the file that is argument 1,
// {maxCalls, targets}. Writes "<number> <url> <token>" lines into the folder that is argument 2, one file each.
import { readFileSync } from "node:fs";
import { CodeGrader } from "@agentv/core";

const says = (text, input, output) => () => ({
  output: [{ role: "assistant", content: text }],
  ...(input === undefined ? {} : { tokenUsage: { input, output } }),
});
const answers = {
  echo: ({ question }) => says(question, 3, 1)(),
  judge: says("Response from judge", 10, 5),
  alt: says("Response from alt", 10, 5),
  mute: says("no usage"),
  silent: says("", 10, 0),
  broken: () => {
    throw new Error("mock: failed, as fail_rate asks for");
  },
};
const [list, folder] = process.argv.slice(2);
const providerOf = (name) =>
  Object.hasOwn(answers, name)
    ? { id: name, kind: "mock", targetName: name, invoke: async (request) => answers[name](request) }
    : undefined;

// The grader is a program that tells its address and stays; the proxy lives for as long as it does.
const told = 'printf "%s %s\\n" "$AGENTV_TARGET_PROXY_URL" "$AGENTV_TARGET_PROXY_TOKEN" > "$0.new"; mv "$0.new" "$0"; exec sleep 600';
await Promise.all(
  JSON.parse(readFileSync(list, "utf8")).map(({ maxCalls, targets }, number) =>
    new CodeGrader({ command: ["sh", "-c", told, `${folder}/${number}`], target: { max_calls: maxCalls } }).evaluate({
      evalCase: { id: "parity", question: "", criteria: "", expected_output: [], input: [], file_paths: [] },
      candidate: "",
      judgeProvider: providerOf("judge"),
      targetResolver: providerOf,
      availableTargets: targets,
    }),
  ),
);
