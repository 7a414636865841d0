//! The day and time that a template sees, and `strftime` of it.

use std::fmt;
use std::str::FromStr;

use minijinja::{Error, ErrorKind};

/// The day and time that a template sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateDate {
    /// Year of our calendar.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
}

/// That a text is no date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a day such as 2026-11-29, or with its time 2026-11-29T08:30:00, found {found:?}")]
pub struct DateError {
    /// The text.
    pub found: String,
}

impl FromStr for TemplateDate {
    type Err = DateError;

    /// `YYYY-MM-DD`, at midnight, or `YYYY-MM-DDThh:mm:ss`.
    fn from_str(text: &str) -> Result<Self, DateError> {
        let number = |range: std::ops::Range<usize>| {
            let digits = text.get(range).filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
            digits.parse::<u16>().ok()
        };
        let small = |at: usize, from: u8, to: u8| {
            let value = u8::try_from(number(at..at + 2)?).ok()?;
            (from..=to).contains(&value).then_some(value)
        };
        let is_at = |at: usize, c: u8| text.as_bytes().get(at) == Some(&c);
        let day = || {
            let date = Self {
                year: number(0..4)?,
                month: small(5, 1, 12)?,
                day: small(8, 1, 31)?,
                hour: 0,
                minute: 0,
                second: 0,
            };
            let is_day = is_at(4, b'-') && is_at(7, b'-') && date.day <= date.days_of_month();
            is_day.then_some(date)
        };
        let with_time = |date: Self| {
            let is_time = is_at(10, b'T') && is_at(13, b':') && is_at(16, b':');
            let [hour, minute, second] = [small(11, 0, 23)?, small(14, 0, 59)?, small(17, 0, 59)?];
            is_time.then_some(Self { hour, minute, second, ..date })
        };
        let date = match text.len() {
            10 => day(),
            19 => day().and_then(with_time),
            _ => None,
        };
        date.ok_or_else(|| DateError { found: text.to_owned() })
    }
}

impl fmt::Display for TemplateDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl TemplateDate {
    fn days_of_month(self) -> u8 {
        let is_multiple = |years: u16| self.year.is_multiple_of(years);
        let is_leap = (is_multiple(4) && !is_multiple(100)) || is_multiple(400);
        match self.month {
            2 => 28 + u8::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// 1 for the first of January.
    fn day_of_year(self) -> u32 {
        let before = (1..self.month).map(|month| u32::from(Self { month, ..self }.days_of_month()));
        before.sum::<u32>() + u32::from(self.day)
    }

    /// 0 for Sunday: the first of January of the year 1 was a Monday.
    fn weekday(self) -> u32 {
        let years = u32::from(self.year) + 399;
        let leap_days = years / 4 - years / 100 + years / 400;
        (years + leap_days + self.day_of_year()) % 7
    }

    /// `datetime.strftime` in the C locale, with the directives of which the result is the same
    /// everywhere. A hyphen leaves out the zeros in front of a number.
    pub(super) fn format(&self, format: &str) -> Result<String, Error> {
        let mut written = String::new();
        let mut rest = format;
        while let Some((before, behind)) = rest.split_once('%') {
            written.push_str(before);
            let (is_short, behind) =
                behind.strip_prefix('-').map_or((false, behind), |behind| (true, behind));
            let Some(directive) = behind.chars().next() else { return Ok(written + "%") };
            let part = self.part(directive, is_short).ok_or_else(|| {
                let flag = if is_short { "-" } else { "" };
                let cause = format!("strftime_now: %{flag}{directive} is not supported");
                Error::new(ErrorKind::InvalidOperation, cause)
            })?;
            written.push_str(&part);
            rest = &behind[directive.len_utf8()..];
        }
        Ok(written + rest)
    }

    /// What a directive stands for.
    fn part(self, directive: char, is_short: bool) -> Option<String> {
        let whole = |format: &str| self.format(format).ok();
        Some(match directive {
            'A' => self.day_name().to_owned(),
            'a' => self.day_name()[..3].to_owned(),
            'B' => self.month_name().to_owned(),
            'b' | 'h' => self.month_name()[..3].to_owned(),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'P' => if self.hour < 12 { "am" } else { "pm" }.to_owned(),
            'f' => "000000".to_owned(),
            'c' => whole("%a %b %e %H:%M:%S %Y")?,
            'D' | 'x' => whole("%m/%d/%y")?,
            'F' => whole("%Y-%m-%d")?,
            'r' => whole("%I:%M:%S %p")?,
            'R' => whole("%H:%M")?,
            'T' | 'X' => whole("%H:%M:%S")?,
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            // A time without a zone has none.
            'Z' | 'z' => String::new(),
            '%' => "%".to_owned(),
            _ => return self.number(directive, is_short),
        })
    }

    /// The number that a directive stands for.
    fn number(self, directive: char, is_short: bool) -> Option<String> {
        let number = |value: u32, width: usize| match is_short {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let short = u32::from;
        Some(match directive {
            'd' => number(short(self.day), 2),
            'e' if !is_short => format!("{:2}", self.day),
            'm' => number(short(self.month), 2),
            'y' => number(u32::from(self.year) % 100, 2),
            'C' => number(u32::from(self.year) / 100, 2),
            'H' => number(short(self.hour), 2),
            'k' if !is_short => format!("{:2}", self.hour),
            'l' if !is_short => format!("{:2}", (self.hour + 11) % 12 + 1),
            'I' => number((short(self.hour) + 11) % 12 + 1, 2),
            'j' => number(self.day_of_year(), 3),
            'M' => number(short(self.minute), 2),
            'S' => number(short(self.second), 2),
            'Y' => self.year.to_string(),
            'u' => ((self.weekday() + 6) % 7 + 1).to_string(),
            'U' => number((self.day_of_year() + 6 - self.weekday()) / 7, 2),
            'w' => self.weekday().to_string(),
            'W' => number((self.day_of_year() + 6 - (self.weekday() + 6) % 7) / 7, 2),
            _ => return None,
        })
    }

    fn day_name(self) -> &'static str {
        DAYS.get(self.weekday() as usize).expect("a remainder of seven")
    }

    fn month_name(self) -> &'static str {
        MONTHS.get(usize::from(self.month).wrapping_sub(1)).copied().unwrap_or("???")
    }
}

#[cfg(test)]
mod tests {
    use super::{DateError, TemplateDate};

    #[test]
    fn a_date_is_formatted_as_in_python() {
        let check = |date: &str, format: &str, expected: &str| {
            let date: TemplateDate = date.parse().expect("a date");
            assert_eq!(date.format(format).expect("it is formatted"), expected, "{format}");
        };
        let day = "2024-07-06T09:05:59";
        check(day, "%d %b %Y, %B %m %H:%M:%S %%", "06 Jul 2024, July 07 09:05:59 %");
        check(day, "%A %a, %-d.%-m.%y %j %-j", "Saturday Sat, 6.7.24 188 188");
        check(day, "%I:%M %p %e %w %u|%Z|%z|%f", "09:05 AM  6 6 6|||000000");
        check(day, "%c|%x|%X", "Sat Jul  6 09:05:59 2024|07/06/24|09:05:59");
        check(
            "2000-12-31T12:00:00",
            "%F %T %D %R %-I %p %j",
            "2000-12-31 12:00:00 12/31/00 12:00 12 PM 366",
        );
        check("2026-11-29", "%A %H%I %h é", "Sunday 0012 Nov é");
        check("1900-03-01", "%a %j", "Thu 060");
        check("2023-01-01", "%U %W %C %k %l%P %r%", "01 00 20  0 12am 12:00:00 AM%");
        let date: TemplateDate = day.parse().expect("a date");
        for (format, directive) in [("%q", "%q"), ("%-e", "%-e"), ("%G", "%G"), ("%s", "%s")] {
            let refused = date.format(format).map_err(|error| error.to_string());
            let expected = format!("strftime_now: {directive} is not supported");
            assert!(refused.is_err_and(|error| error.ends_with(&expected)), "{format}");
        }
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for text in [
            "",
            "2026-02-29",
            "2026-13-01",
            "26-1-1",
            "2026-11-29 08:30:00",
            "+026-11-29",
            "2026-11-29T24:00:00",
            "2026-11-2é",
        ] {
            assert_eq!(text.parse::<TemplateDate>(), Err(DateError { found: text.to_owned() }));
        }
        let leap = TemplateDate { year: 2024, month: 2, day: 29, hour: 0, minute: 0, second: 0 };
        assert_eq!("2024-02-29".parse(), Ok(leap));
        assert_eq!(leap.to_string(), "2024-02-29T00:00:00");
        assert_eq!(leap.to_string().parse(), Ok(leap));
    }
}
