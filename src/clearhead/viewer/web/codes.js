// A weight as 16 bits, as codes.py writes it: 0 hidden, 1 zero, 2..65534 the weights from 2^-32 to 1 in
// equal steps of their logarithm, 65535 no number. Larger codes are larger weights.

export const HIDDEN = 0;
export const ZERO = 1;
export const ONE = 65534;
export const NO_NUMBER = 65535;
export const STEPS_PER_OCTAVE = 65532 / 32;

export function encodeWeight(p) {
  if (Number.isNaN(p)) return NO_NUMBER;
  if (p < 2 ** -32) return ZERO;
  return Math.min(ONE, Math.max(2, Math.round(ONE + Math.log2(p) * STEPS_PER_OCTAVE)));
}

// The weight of a code: 0 for hidden and for zero.
export function decodeCode(code) {
  if (code === NO_NUMBER) return NaN;
  return code <= ZERO ? 0 : 2 ** ((code - ONE) / STEPS_PER_OCTAVE);
}

let table = null;

// decodeCode of all codes, once.
export function decodeTable() {
  if (!table) {
    table = new Float64Array(65536);
    for (let code = 0; code < 65536; code += 1) table[code] = decodeCode(code);
  }
  return table;
}
