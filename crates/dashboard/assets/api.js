// What the server is asked. Wherever the page is mounted, its API is beside it.

const place = (path) => new URL(path, document.baseURI);

export class Refusal extends Error {
  constructor(code, message, fix, events = 0) {
    super(message);
    this.code = code;
    this.fix = fix;
    // How many were changed nevertheless.
    this.events = events;
  }
}

const ask = async (path, options) => {
  let answer;
  try {
    answer = await fetch(place(path), options);
  } catch {
    throw new Refusal("E-UNREACHABLE", "the server of this page does not answer", "see whether semel relay runs");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(body.code || String(answer.status), body.error || answer.statusText, body.fix, body.events);
  return body;
};

const of = (pipeline, path) => "api/pipelines/" + encodeURIComponent(pipeline) + "/" + path;
const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
};

export const get = (path) => ask(path, { headers: { accept: "application/json" } });
export const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const overview = () => get("api/overview");
export const history = (pipeline) => get(of(pipeline, "history"));
export const events = (pipeline, q, before) => get(of(pipeline, "events" + query({ q, before })));
export const event = (pipeline, id) => get(of(pipeline, "events/" + encodeURIComponent(id)));
export const reveal = (pipeline, id) => post(of(pipeline, "events/" + encodeURIComponent(id) + "/reveal"));
export const dead = (pipeline) => get(of(pipeline, "dead"));
export const change = (pipeline, order) => post(of(pipeline, "changes"), order);
export const workings = (pipeline) => get(of(pipeline, "workings"));
export const consumers = (pipeline) => get(of(pipeline, "consumers"));
export const keys = (pipeline, after) => get(of(pipeline, "keys" + query({ after })));
export const freeKey = (pipeline, key) => post(of(pipeline, "keys/" + encodeURIComponent(key) + "/free"));
export const activity = (pipeline, before) => get(of(pipeline, "activity" + query({ before })));

// The overview after every look of the server, until the returned function is called.
export const listen = (heard, lost) => {
  const source = new EventSource(place("api/live"));
  source.onmessage = (message) => heard(JSON.parse(message.data));
  source.onerror = () => lost();
  return () => source.close();
};
