/** WAV files: 16-bit samples, one channel. */

const HEAD_BYTES = 44;
const SAMPLE_BYTES = 2;
const FILE_SIZE_AT = 4;
const DATA_SIZE_AT = 40;
/** The size of a file whose end was not known when its head was sent. */
const UNKNOWN = 0xffffffff;

/** Return a sound as a WAV file. Several channels become one: their mean. */
export function wavOf(
  sound: Pick<AudioBuffer, "length" | "sampleRate" | "numberOfChannels" | "getChannelData">,
): ArrayBuffer {
  const { length, sampleRate, numberOfChannels } = sound;
  const dataBytes = length * SAMPLE_BYTES;
  const file = new DataView(new ArrayBuffer(HEAD_BYTES + dataBytes));
  writeHead(file, sampleRate, dataBytes);
  const channels = Array.from({ length: numberOfChannels }, (_, c) => sound.getChannelData(c));
  for (let i = 0; i < length; i++) {
    const sum = channels.reduce((total, channel) => total + (channel[i] ?? 0), 0);
    const sample = Math.max(-1, Math.min(1, sum / numberOfChannels));
    file.setInt16(HEAD_BYTES + i * SAMPLE_BYTES, Math.round(sample * 0x7fff), true);
  }
  return file.buffer as ArrayBuffer;
}

/** Return a WAV file that was streamed, whose head leaves its sizes open, with its true sizes. */
export function withSizes(file: ArrayBuffer): ArrayBuffer {
  if (file.byteLength < HEAD_BYTES) return file;
  const head = new DataView(file);
  if (head.getUint32(DATA_SIZE_AT, true) === UNKNOWN) {
    head.setUint32(FILE_SIZE_AT, file.byteLength - 8, true);
    head.setUint32(DATA_SIZE_AT, file.byteLength - HEAD_BYTES, true);
  }
  return file;
}

function writeHead(file: DataView, rate: number, dataBytes: number): void {
  const text = (at: number, letters: string) =>
    [...letters].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  file.setUint32(FILE_SIZE_AT, HEAD_BYTES - 8 + dataBytes, true);
  text(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, 1, true);
  file.setUint16(22, 1, true);
  file.setUint32(24, rate, true);
  file.setUint32(28, rate * SAMPLE_BYTES, true);
  file.setUint16(32, SAMPLE_BYTES, true);
  file.setUint16(34, 8 * SAMPLE_BYTES, true);
  text(36, "data");
  file.setUint32(DATA_SIZE_AT, dataBytes, true);
}
