// The peer: AgentV's own proxy, as its code grader starts it. Its providers answer at once, and after 50 ms.
// Arguments: where to write the proxy's address and token, for whoever measures it.
import { CodeGrader } from "@agentv/core";

const answering = (name, delayMs) => ({
  id: name,
  kind: "mock",
  targetName: name,
  invoke: async () => {
    if (delayMs) await new Promise((done) => setTimeout(done, delayMs));
    return { output: [{ role: "assistant", content: "fine" }], tokenUsage: { input: 7, output: 2 } };
  },
});
const targets = { bench: answering("bench", 0), slow: answering("slow", 50) };

// The grader is a program that tells its address and stays; the proxy lives for as long as it does.
const says = 'printf "%s\\n%s\\n" "$AGENTV_TARGET_PROXY_URL" "$AGENTV_TARGET_PROXY_TOKEN" > "$0"; cat > /dev/null; sleep 86400';
const grader = new CodeGrader({ command: ["sh", "-c", says, process.argv[2]], target: { max_calls: 1e9 } });
await grader.evaluate({
  evalCase: { id: "bench", question: "", criteria: "", expected_output: [], input: [], file_paths: [] },
  candidate: "",
  judgeProvider: targets.bench,
  targetResolver: (name) => targets[name],
  availableTargets: Object.keys(targets),
});
