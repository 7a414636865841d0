//! Numbers and durations as lines and tables print them.

use std::time::Duration;

/// Tokens a second, for `tokens` in `elapsed`.
#[must_use]
pub fn tokens_per_s(tokens: u64, elapsed: Duration) -> f64 {
    tokens as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// A number with three digits that count, as in 412, 38.1 and 0.812.
#[must_use]
pub fn three_digits(number: f64) -> String {
    match number.abs() {
        _ if !number.is_finite() => format!("{number}"),
        large if large >= 1e6 => format!("{number:.2e}"),
        large if large >= 99.95 => format!("{number:.0}"),
        middle if middle >= 9.995 => format!("{number:.1}"),
        middle if middle >= 0.9995 => format!("{number:.2}"),
        small if small >= 1e-3 || small == 0.0 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

/// A count in up to five columns, as in 412, 9,994, 17.3k and 1.25M.
#[must_use]
pub fn short_count(number: f64) -> String {
    match number {
        _ if !number.is_finite() => format!("{number}"),
        small if small < 9_999.5 => grouped(small.round() as u64),
        thousands if thousands < 999_500.0 => format!("{}k", three_digits(thousands / 1e3)),
        millions if millions < 999.5e6 => format!("{}M", three_digits(millions / 1e6)),
        billions => format!("{}G", three_digits(billions / 1e9)),
    }
}

/// A duration in up to six columns, as in 412 ms, 13.9 s and 3m07.
#[must_use]
pub fn short_time(duration: Duration) -> String {
    match duration.as_secs_f64() {
        short if short < 0.9995 => format!("{} ms", three_digits(short * 1e3)),
        seconds if seconds < 99.95 => format!("{} s", three_digits(seconds)),
        _ => duration_text(duration),
    }
}

/// A number as in 5.9e-4.
#[must_use]
pub fn scientific(number: f64) -> String {
    format!("{number:.1e}")
}

/// With a comma between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many things of this name, as in 1 file and 1,200 files.
#[must_use]
pub fn counted(count: u64, name: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {name}{ending}", grouped(count))
}

/// The stages of each pipeline, and how many pipelines there are if there are several, as in
/// 4 stages × 2 replicas.
#[must_use]
pub fn pipelines_text(stages: u64, replicas: u32) -> String {
    let each = counted(stages, "stage");
    if replicas > 1 { format!("{each} × {replicas} replicas") } else { each }
}

/// As in 42s, 3m07 and 1h02.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let check = |number, expected: &str| assert_eq!(three_digits(number), expected);
        check(0.0, "0.000");
        check(0.000_12, "1.20e-4");
        check(0.0512, "0.051");
        check(0.9999, "1.00");
        check(9.994, "9.99");
        check(9.996, "10.0");
        check(99.94, "99.9");
        check(99.96, "100");
        check(12_345.0, "12345");
        check(3.2e7, "3.20e7");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let check = |seconds, expected: &str| {
            assert_eq!(duration_text(Duration::from_secs(seconds)), expected);
        };
        check(0, "0s");
        check(59, "59s");
        check(60, "1m00");
        check(3_599, "59m59");
        check(3_600, "1h00");
    }

    #[test]
    fn counts_and_times_are_short() {
        let check = |number, expected: &str| assert_eq!(short_count(number), expected);
        check(0.4, "0");
        check(9_994.0, "9,994");
        check(9_999.6, "10.0k");
        check(127_184.4, "127k");
        check(999_600.0, "1.00M");
        check(2.5e9, "2.50G");
        check(f64::INFINITY, "inf");
        let check = |ms, expected: &str| {
            assert_eq!(short_time(Duration::from_millis(ms)), expected);
        };
        check(412, "412 ms");
        check(1_000, "1.00 s");
        check(13_924, "13.9 s");
        check(187_000, "3m07");
    }

    #[test]
    fn thousands_are_grouped() {
        let check = |number, expected: &str| assert_eq!(grouped(number), expected);
        check(0, "0");
        check(999, "999");
        check(1_000, "1,000");
        check(1_234_567, "1,234,567");
        let check = |count, expected: &str| assert_eq!(counted(count, "shard"), expected);
        check(0, "0 shards");
        check(1, "1 shard");
        check(1_200, "1,200 shards");
        assert_eq!(pipelines_text(4, 1), "4 stages");
        assert_eq!(pipelines_text(1, 4), "1 stage × 4 replicas");
    }
}
