//! Scalars as TensorBoard's event files have them.
//!
//! A file is a sequence of records (TensorFlow, `core/lib/io/record_writer`): the length as u64, the
//! masked CRC-32C of these eight bytes, the bytes, and their masked CRC-32C, all little-endian. Each
//! holds an `Event` of `core/util/event.proto` in protobuf's encoding; of its fields these are
//! written:
//!
//! ```text
//! Event:   1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary (Summary)
//! Summary: 1 value (repeated: 1 tag (string)  2 simple_value (float))
//! ```

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
    let mut event = wall_time(at_ms);
    event.push(key(2, 0));
    push_varint(&mut event, step);
    push_bytes(&mut event, 5, &summary);
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
