// Secret sharing in the browser: the same arithmetic as autorep.service.shares, on 64-bit words.

/** A fresh query id: 128 random bits in hex. */
export function newQueryId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What a client sends to server 0 or 1: each gets another token, made from the client's own (autorep.service.tokens). */
export async function serverToken(secret, index) {
  const text = new TextEncoder();
  const key = await crypto.subtle.importKey("raw", text.encode(secret), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const code = await crypto.subtle.sign("HMAC", key, text.encode(`autorep server ${index}`));
  return Array.from(new Uint8Array(code), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Two arrays of words that add up to the fixed-point values modulo 2^64; either alone is uniform noise. */
export function split(values, frac) {
  const first = new BigUint64Array(values.length);
  const second = new BigUint64Array(values.length);
  for (let start = 0; start < first.length; start += 8192) {
    crypto.getRandomValues(first.subarray(start, start + 8192)); // at most 65,536 bytes a call
  }
  const scale = 2 ** frac;
  for (let i = 0; i < values.length; i++) {
    second[i] = BigInt.asUintN(64, BigInt(Math.round(values[i] * scale)) - first[i]);
  }
  return [first, second];
}

/** The real values from both servers' answers. */
export function join(first, second, bits, frac) {
  const scale = 2 ** frac;
  return Array.from(first, (word, i) => Number(BigInt.asIntN(bits, word + second[i])) / scale);
}
