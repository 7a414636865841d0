//! Parses numbers and lists of flags, and collects the errors in them.

use super::input_error::InputError;

/// Which numbers a flag accepts.
#[derive(Clone, Copy)]
pub enum AllowedNumbers {
    /// Times and amounts: 0 or more.
    FromZero,
    /// Changes: negative numbers, too.
    Any,
}

/// Largest number of a flag: far beyond any time or size, and far from where sums over a program,
/// or a trace in nanoseconds, would no longer be finite.
const NUMBER_MAX: f64 = 1e15;

/// Parser of flags, with the errors so far.
#[derive(Default)]
pub struct InputParser {
    /// The pipeline's stages, if there is a pipeline to count them of.
    pub stage_count: Option<u32>,
    errors: Vec<InputError>,
}

impl InputParser {
    /// Nothing wrong so far, of a pipeline of so many stages.
    pub fn of(stage_count: Option<u32>) -> Self {
        Self { stage_count, errors: Vec::new() }
    }

    /// `value`, unless something was wrong.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Vec<InputError>> {
        value.filter(|_| self.errors.is_empty()).ok_or(self.errors)
    }

    /// How much is wrong so far.
    pub fn error_count(&self) -> usize {
        self.errors.len()
    }

    /// The value; the error is kept.
    pub fn keep<T>(&mut self, result: Result<T, InputError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// Records the error that `flag` does not apply, because it is for `of`.
    pub fn refuse(&mut self, flag: &'static str, of: &'static str) {
        self.errors.push(InputError::Foreign { flag, of });
    }

    /// Parses a flag's single number; an error is recorded.
    pub fn number(
        &mut self,
        flag: &'static str,
        text: &str,
        numbers: AllowedNumbers,
    ) -> Option<f64> {
        self.keep(parse_number(flag, text, numbers))
    }

    /// Numbers with commas, as many as there are.
    pub fn numbers(
        &mut self,
        flag: &'static str,
        text: &str,
        numbers: AllowedNumbers,
    ) -> Option<Vec<f64>> {
        let values: Vec<Option<f64>> =
            text.split(',').map(|item| self.number(flag, item, numbers)).collect();
        values.into_iter().collect()
    }

    /// A number for each stage, from one for all or one a stage.
    pub fn list(
        &mut self,
        flag: &'static str,
        text: &str,
        numbers: AllowedNumbers,
    ) -> Option<Vec<f64>> {
        let values = self.numbers(flag, text, numbers)?;
        let expected = self.stage_count?;
        match values.as_slice() {
            [value] => Some(vec![*value; expected as usize]),
            _ if values.len() == expected as usize => Some(values),
            _ => self.keep(Err(InputError::Length { flag, expected, found: values.len() })),
        }
    }

    /// The same of a flag that may be left out: `None` inside if it was.
    pub fn optional_list(
        &mut self,
        flag: &'static str,
        text: Option<&str>,
        numbers: AllowedNumbers,
    ) -> Option<Option<Vec<f64>>> {
        let Some(text) = text else { return Some(None) };
        self.list(flag, text, numbers).map(Some)
    }
}

fn parse_number(
    flag: &'static str,
    text: &str,
    numbers: AllowedNumbers,
) -> Result<f64, InputError> {
    let (min, expected) = match numbers {
        AllowedNumbers::FromZero => (0.0, "a number from 0 to 1e15"),
        AllowedNumbers::Any => (-NUMBER_MAX, "a number from -1e15 to 1e15"),
    };
    match text.trim().parse::<f64>() {
        Ok(number) if (min..=NUMBER_MAX).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(InputError::Number { flag, expected, found: text.to_owned() }),
    }
}
