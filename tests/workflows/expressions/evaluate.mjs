// Evaluates workflow expressions with GitHub's own evaluator: one JSON object a line in, one a line out.
//
//   {"expression": "...", "contexts": {...}, "status": "success", "condition": true}
//   {"value": ...} or {"error": "..."}
//
// A condition without a status function has `success() &&` before it, as GitHub gives it to every `if:`.
import { createInterface } from "node:readline";
import { Evaluator, Lexer, Parser, data } from "@actions/expressions";

const STATUS_FUNCTIONS = {
  success: (status) => status === "success",
  failure: (status) => status === "failure",
  cancelled: (status) => status === "cancelled",
  always: () => true,
};

function statusFunctions(status) {
  return Object.entries(STATUS_FUNCTIONS).map(([name, holds]) => ({
    name,
    minArgs: 0,
    maxArgs: 0,
    call: () => new data.BooleanData(holds(status)),
  }));
}

function asCondition(expression) {
  if (!expression.trim()) return "success()";
  const outsideOfTexts = expression.replace(/'(?:[^']|'')*'/g, "''");
  const asks = /\b(success|failure|cancelled|always)\s*\(/i.test(outsideOfTexts);
  return asks ? expression : `success() && (${expression})`;
}

function evaluate({ expression, contexts, status, condition }) {
  const functions = statusFunctions(status);
  const tokens = new Lexer(condition ? asCondition(expression) : expression).lex().tokens;
  const parsed = new Parser(tokens, Object.keys(contexts), functions).parse();
  const values = JSON.parse(JSON.stringify(contexts), data.reviver);
  const known = new Map(functions.map((each) => [each.name, each]));
  const result = new Evaluator(parsed, values, known).evaluate();
  return condition ? truthy(result) : JSON.parse(JSON.stringify(result, data.replacer) ?? "null");
}

// https://docs.github.com/en/actions/reference/workflows-and-actions/expressions#literals
function truthy(value) {
  if (value.kind === data.Kind.Null) return false;
  if (value.kind === data.Kind.Boolean || value.kind === data.Kind.String) return Boolean(value.value);
  if (value.kind === data.Kind.Number) return value.value !== 0 && !Number.isNaN(value.value);
  return true;
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { value: evaluate(JSON.parse(line)) };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
