/** WAV files of recordings: 16-bit samples, one channel. */

const HEAD_BYTES = 44;
const SAMPLE_BYTES = 2;

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

function writeHead(file: DataView, rate: number, dataBytes: number): void {
  const text = (at: number, letters: string) =>
    [...letters].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  file.setUint32(4, HEAD_BYTES - 8 + dataBytes, true);
  text(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, 1, true);
  file.setUint16(22, 1, true);
  file.setUint32(24, rate, true);
  file.setUint32(28, rate * SAMPLE_BYTES, true);
  file.setUint16(32, SAMPLE_BYTES, true);
  file.setUint16(34, 8 * SAMPLE_BYTES, true);
  text(36, "data");
  file.setUint32(40, dataBytes, true);
}
