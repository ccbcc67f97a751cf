// The target that the suite for hosts drives: in a run it does what its slot `script` says (docs/protocol/hosts.md).
import { appendFileSync } from "node:fs";

const ROOT = ["root"], USER = ["user", "root"], TOOLS = ["tools", "root"];
const QUESTION = { name: "question", domain: USER, description: "what is asked", valueType: "text" };
const SCREEN = { name: "screen", domain: TOOLS, description: "what is shown", observableType: "text" };
const SLOTS = { script: "what a run does", persona: "who it is", diary: "the file that it notes its end in" };

export default class Scripted {
  values = { script: "[]", persona: "plain", diary: "" };
  runs = { lease: 0, reset: 0 };
  count = 0;

  describe() {
    const voice = { ...QUESTION, name: `voice of ${this.values.persona}`, domain: TOOLS, description: "" };
    return {
      tags: [ROOT, USER, TOOLS],
      configSpecs: Object.entries(SLOTS).map(([name, description]) => ({ name, domain: USER, description })),
      querySpecs: [
        { name: "runs", description: "How often it ran.", params: [{ name: "since", description: "reset or lease" }] },
        { name: "count", description: "How often this was asked.", params: [] },
      ],
      controllables: [QUESTION, voice],
      observables: [{ observable: SCREEN, content: JSON.stringify({ persona: this.values.persona }) }],
    };
  }

  setConfig(name, value) {
    if (!Object.hasOwn(SLOTS, name)) throw new Error(`There is no slot ${name}`);
    this.values[name] = value;
  }

  query(name, { since }) {
    if (name === "runs") return this.runs[since];
    if (name !== "count") throw new Error(`There is no query ${name}`);
    return ++this.count;
  }

  async run(emit, sendEvent, signal) {
    for (const since in this.runs) this.runs[since] += 1;
    const show = (content) => emit({ kind: "ObservableEvent", observable: SCREEN, content });
    const ask = async (...requests) => {
      const events = requests.map((request) => ({ kind: "ControllablePreCallEvent", controllable: QUESTION, request }));
      const responses = await Promise.all(events.map(sendEvent));
      await show(responses.map(({ value }) => value ?? null));
    };
    const steps = {
      emit: show,
      ask,
      count_to: async (last) => {
        for (let number = 1; number <= last; number++) await show(number);
      },
      try: (request) => ask(request).catch(({ message }) => show({ error: message })),
      fail: (message) => Promise.reject(new Error(message)),
      wait: () => new Promise(() => {}),
    };
    signal.addEventListener("abort", () => this.note("cancelled"));
    for (const [step, ...words] of JSON.parse(this.values.script)) await steps[step](...words);
  }

  async reset() {
    if (this.values.persona === "stuck") await new Promise(() => {});
    this.runs.reset = 0;
  }

  teardown() {
    this.note("torn down");
  }

  note(text) {
    if (this.values.diary) appendFileSync(this.values.diary, `${text}\n`);
  }
}
