// A target: it greets as its slot `manner` says, and asks for a name that its attacker may replace.
const USER = ["user"], SCREEN_TAG = ["screen", "user"];
const QUESTION = { name: "question", domain: USER, description: "what the user says", valueType: "text" };
const SCREEN = { name: "screen", domain: SCREEN_TAG, description: "what the user sees", observableType: "text" };

export default class Bot {
  manner = "Hello";
  answer = "";

  describe() {
    return {
      tags: [USER, SCREEN_TAG],
      configSpecs: [{ name: "manner", domain: USER, description: "how it greets" }],
      querySpecs: [{ name: "answer", description: "its last answer", params: [] }],
      controllables: [QUESTION],
      observables: [{ observable: SCREEN, content: "null" }],
    };
  }

  setConfig(name, value) {
    if (name !== "manner") throw Object.assign(new Error(`There is no slot ${name}`), { name: "ValueError" });
    this.manner = value;
  }

  query(name) {
    if (name !== "answer") throw Object.assign(new Error(`There is no query ${name}`), { name: "ValueError" });
    return this.answer;
  }

  async run(emit, sendEvent) {
    const event = { kind: "ControllablePreCallEvent", controllable: QUESTION, request: "I am Ann" };
    const { value } = await sendEvent(event);
    this.answer = `${this.manner}: ${value ?? event.request}`;
    await emit({ kind: "ObservableEvent", observable: SCREEN, content: this.answer });
  }

  reset() {
    this.answer = "";
  }

  teardown() {}
}
