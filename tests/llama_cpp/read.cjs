// Load a GGUF file with llama.cpp, and tell as JSON what it makes of a text and how it goes on.
// node read.cjs MODEL.gguf COUNT TEXT, or a JSON array of token ids in place of TEXT for a file without tokenizer
"use strict";
const path = require("node:path");

const [, , file, count, text] = process.argv;
// The package exports its folder and not the addon in it.
const addon = path.join(__dirname, "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/llama-addon.node");
const llama = require(addon);
const F32 = 0;

async function main() {
  llama.markLoaded();
  llama.loadBackends();
  llama.loadBackends(path.dirname(addon));
  llama.setLogger(() => {});
  await llama.init();
  const model = new llama.AddonModel(file, {addonExports: llama, gpuLayers: 0});
  if (!(await model.init())) throw new Error(`llama.cpp does not load ${file}`);
  const given = text.startsWith("[") ? Uint32Array.from(JSON.parse(text)) : model.tokenize(text, false);
  const context = new llama.AddonContext(model, {
    contextSize: 256, batchSize: 256, sequences: 1, threads: 1, flashAttention: false,
    kvCacheKeyType: F32, kvCacheValueType: F32,
  });
  if (!(await context.init())) throw new Error("llama.cpp makes no context");
  const sampler = new llama.AddonSampler(model);
  sampler.applyConfig({temperature: 0});
  const continuation = [];
  const logits = [];
  let place = 0;
  let next = given;
  while (continuation.length < Number(count)) {
    context.initBatch(next.length);
    const [last] = context.addToBatch(0, place, next, Uint32Array.from([next.length - 1]));
    await context.decodeBatch();
    place += next.length;
    const [token, , , pairs] = await context.sampleToken(last, sampler, false, false, true);
    const each = [];
    for (let i = 0; i < pairs.length; i += 2) each[pairs[i]] = pairs[i + 1];
    continuation.push(token);
    logits.push(each);
    next = Uint32Array.from([token]);
  }
  const decoded = text.startsWith("[") ? null : model.detokenize(given, true);
  const ends = [0, 1, 2, 3].filter((token) => model.isEogToken(token));
  const facts = {ends, adds_bos: model.shouldPrependBosToken()};
  console.log(JSON.stringify({tokens: [...given], text: decoded, continuation, logits, ...facts}));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
