//! Scalars, texts and histograms as TensorBoard's event files have them.
//!
//! A file is a sequence of records (TensorFlow, `core/lib/io/record_writer`): the length as u64, the
//! masked CRC-32C of these eight bytes, the bytes, and their masked CRC-32C, all little-endian. Each
//! holds an `Event` of `core/util/event.proto` in protobuf's encoding; of its fields these are
//! written:
//!
//! ```text
//! Event:     1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary (Summary)
//! Summary:   1 value (repeated: 1 tag (string)  2 simple_value (float)  5 histo  8 tensor  9 metadata)
//! Histogram: 1 min  2 max  3 num  4 sum  5 sum_squares (double)  6 bucket_limit  7 bucket (packed double)
//! Tensor:    1 dtype (7, DT_STRING)  8 string_val        metadata: 1 plugin_data (1 plugin_name)
//! ```

/// Buckets of a histogram: as many as TensorBoard shows.
const BUCKETS: usize = 30;

/// The record that a file begins with.
#[must_use]
pub fn first_record(at_ms: u64) -> Vec<u8> {
    let mut event = wall_time(at_ms);
    push_bytes(&mut event, 3, b"brain.Event:2");
    record(&event)
}

/// A record with the scalars of a step.
#[must_use]
pub fn scalars_record(at_ms: u64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, scalar) in scalars {
        let mut value = Vec::new();
        push_bytes(&mut value, 1, tag.as_bytes());
        value.push(key(2, 5));
        value.extend((*scalar as f32).to_le_bytes());
        push_bytes(&mut summary, 1, &value);
    }
    summary_record(at_ms, step, &summary)
}

/// A record with a text, which TensorBoard shows as Markdown.
#[must_use]
pub fn text_record(at_ms: u64, step: u64, (tag, text): (&str, &str)) -> Vec<u8> {
    const DT_STRING: u64 = 7;
    let mut value = Vec::new();
    push_bytes(&mut value, 1, tag.as_bytes());
    let mut tensor = vec![key(1, 0)];
    push_varint(&mut tensor, DT_STRING);
    push_bytes(&mut tensor, 8, text.as_bytes());
    push_bytes(&mut value, 8, &tensor);
    let mut plugin = Vec::new();
    push_bytes(&mut plugin, 1, b"text");
    let mut metadata = Vec::new();
    push_bytes(&mut metadata, 1, &plugin);
    push_bytes(&mut value, 9, &metadata);
    let mut summary = Vec::new();
    push_bytes(&mut summary, 1, &value);
    summary_record(at_ms, step, &summary)
}

/// A record with how often values lie where; nothing of no values. All are finite.
#[must_use]
pub fn histogram_record(at_ms: u64, step: u64, (tag, values): (&str, &[f64])) -> Option<Vec<u8>> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    // All in one place lie in a range that is not empty.
    let range = if most > least { most - least } else { least.abs().max(1e-12) };
    let limits: Vec<f64> =
        (1..=BUCKETS).map(|number| least + range * number as f64 / BUCKETS as f64).collect();
    let mut counts = vec![0.0; BUCKETS];
    for value in values {
        let at = ((value - least) / range * BUCKETS as f64) as usize;
        counts[at.min(BUCKETS - 1)] += 1.0;
    }
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    let mut histogram = Vec::new();
    for (field, number) in (1..).zip([least, most, values.len() as f64, sum, squares]) {
        histogram.push(key(field, 1));
        histogram.extend(number.to_le_bytes());
    }
    push_doubles(&mut histogram, 6, &limits);
    push_doubles(&mut histogram, 7, &counts);
    let mut value = Vec::new();
    push_bytes(&mut value, 1, tag.as_bytes());
    push_bytes(&mut value, 5, &histogram);
    let mut summary = Vec::new();
    push_bytes(&mut summary, 1, &value);
    Some(summary_record(at_ms, step, &summary))
}

fn push_doubles(to: &mut Vec<u8>, field: u8, numbers: &[f64]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    push_bytes(to, field, &bytes);
}

fn summary_record(at_ms: u64, step: u64, summary: &[u8]) -> Vec<u8> {
    let mut event = wall_time(at_ms);
    event.push(key(2, 0));
    push_varint(&mut event, step);
    push_bytes(&mut event, 5, summary);
    record(&event)
}

fn wall_time(at_ms: u64) -> Vec<u8> {
    let mut event = vec![key(1, 1)];
    event.extend((at_ms as f64 / 1e3).to_le_bytes());
    event
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(masked_crc(&length).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.extend(masked_crc(data).to_le_bytes());
    bytes
}

/// A field's number and wire type.
const fn key(field: u8, wire: u8) -> u8 {
    field << 3 | wire
}

fn push_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn push_bytes(to: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    to.push(key(field, 2));
    push_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// CRC-32C (Castagnoli), a bit at a time: a record has a few hundred bytes, and a step one record.
fn crc(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
        }
    }
    !crc
}

fn masked_crc(bytes: &[u8]) -> u32 {
    const MASK: u32 = 0xa282_ead8;
    crc(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        // Appendix B.4: 32 bytes of zeros, of ones, and counted up.
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        let counted: Vec<u8> = (0..32).collect();
        assert_eq!(crc(&counted), 0x46dd_794e);
    }

    #[test]
    fn a_histogram_counts_every_value_once() {
        assert_eq!(histogram_record(0, 1, ("a", &[])), None);
        for values in [&[2.0; 5][..], &[0.0], &[-1.0, 0.0, 1.0, 2.0, 2.0]] {
            let record = histogram_record(0, 1, ("a", values)).expect("values");
            let counts = &record[record.len() - 4 - 8 * BUCKETS..record.len() - 4];
            let counts = counts.chunks_exact(8).map(|bytes| bytes.try_into().expect("eight"));
            let total: f64 = counts.map(f64::from_le_bytes).sum();
            assert_eq!(total, values.len() as f64);
        }
    }

    #[test]
    fn records_are_those_of_tensorboard() {
        let first = first_record(1_500);
        assert_eq!(first[..8], 24_u64.to_le_bytes());
        assert_eq!(first[12..12 + 9], [9, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]);
        let step = scalars_record(1_500, 300, &[("loss", 2.5)]);
        let event = &step[12..step.len() - 4];
        assert_eq!(event[9..12], [0x10, 0xac, 0x02], "step 300");
        assert_eq!(event[12..], *b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40");
    }
}
