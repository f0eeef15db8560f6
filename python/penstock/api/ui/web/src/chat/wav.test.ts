import { expect, it } from "vitest";

import { wavOf, withSizes } from "./wav";

const sound = {
  length: 2,
  sampleRate: 16_000,
  numberOfChannels: 2,
  getChannelData: (channel: number) => new Float32Array(channel === 0 ? [1, 0] : [0, -1]),
};
const sizes = (file: ArrayBuffer) => {
  const head = new DataView(file);
  return [head.getUint32(4, true), head.getUint32(40, true)];
};

it("writes the mean of the channels", () => {
  const file = new DataView(wavOf(sound));
  expect([file.getInt16(44, true), file.getInt16(46, true)]).toEqual([16384, -16383]);
  expect(sizes(file.buffer as ArrayBuffer)).toEqual([40, 4]);
});

it("puts the sizes into a head that left them open, and leaves others alone", () => {
  const file = wavOf(sound);
  const before = sizes(file);
  new DataView(file).setUint32(40, 0xffffffff, true);
  expect(sizes(withSizes(file))).toEqual(before);
  new DataView(file).setUint32(40, 2, true);
  expect(sizes(withSizes(file))).toEqual([40, 2]);
  expect(withSizes(new ArrayBuffer(3)).byteLength).toBe(3);
});
