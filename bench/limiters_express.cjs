// An Express server with express-rate-limit before a small upstream; without "style" it is the upstream alone.
// Told by the first line of its input; "statistics" asks for the counts; it ends with its input.
"use strict";
const readline = require("node:readline");
const express = require("express");
const { rateLimit } = require("express-rate-limit");

const counts = { ok: 0, rejected: 0 };
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

function serve({ style, limit, window, latencies }) {
  const app = express();
  app.disable("x-powered-by");
  if (style) {
    app.use(
      rateLimit({
        windowMs: window * 1000,
        limit,
        standardHeaders: style,
        legacyHeaders: false,
        keyGenerator: (request) => request.get("authorization") ?? "",
        handler: (request, response, next, options) => {
          counts.rejected += 1;
          response.status(options.statusCode).send(options.message);
        },
      }),
    );
  }
  let admitted = 0;
  app.post("/chat/completions", (request, response) => {
    const seconds = latencies[admitted++ % latencies.length];
    request.resume();
    setTimeout(() => {
      counts.ok += 1;
      response.json({
        id: "chatcmpl-bench",
        object: "chat.completion",
        created: 0,
        model: "simulated-model",
        choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "ok" } }],
        usage: { prompt_tokens: 8, completion_tokens: 1, total_tokens: 9 },
      });
    }, seconds * 1000);
  });
  const server = app.listen(0, "127.0.0.1", 1024, () => say({ port: server.address().port }));
  server.keepAliveTimeout = 600_000;
}

const lines = readline.createInterface({ input: process.stdin });
lines.once("line", (first) => {
  serve(JSON.parse(first));
  lines.on("line", () => say(counts));
});
lines.on("close", () => process.exit(0));
