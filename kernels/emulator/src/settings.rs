//! The settings of the machine: one variable of the environment, read once.

use std::env;
use std::str::FromStr;

/// Words `name=value` with blanks between them; what is not named is as in
/// [`EmulatorSettings::DEFAULT`].
pub const VARIABLE: &str = "ZBELASTIC_EMULATOR";

/// If this is set the driver reports on standard error that it begins: for tests that must not find
/// another.
pub(crate) const REPORT_VARIABLE: &str = "ZBELASTIC_EMULATOR_TELLS";
/// The beginning of that report.
pub(crate) const BEGINS: &str = "emulated driver: ";

/// When work that was enqueued in streams is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionOrder {
    /// As soon as it is enqueued.
    Eager,
    /// Only when a caller waits for it, and nothing that this caller does not wait for.
    Lazy,
    /// Now and then, in streams drawn by chance; what is waited for, at the latest then.
    Random {
        /// The seed that the draws begin from.
        seed: u64,
    },
}

/// A machine and what goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorSettings {
    /// Devices that the driver finds.
    pub devices: u32,
    /// Memory of each device, in MiB.
    pub memory_mib: u64,
    /// The driver's version as it writes it itself: 13000 for 13.0.
    pub driver: u32,
    /// The compute capability of each device: 90 for 9.0.
    pub capability: u32,
    /// The order in which work is done.
    pub order: ExecutionOrder,
    /// Blocks, warps and lanes run from the last to the first.
    pub is_backwards: bool,
    /// The launch of a process, counted from 1, that reads where nothing is: every later call on
    /// its device fails.
    pub faulty_launch: Option<u64>,
    /// The code that the driver returns when it is to begin, if it does not.
    pub refusal: Option<u32>,
}

impl EmulatorSettings {
    /// One device of 8 GiB that does everything at once.
    pub const DEFAULT: Self = Self {
        devices: 1,
        memory_mib: 8 << 10,
        driver: 13_000,
        capability: 90,
        order: ExecutionOrder::Eager,
        is_backwards: false,
        faulty_launch: None,
        refusal: None,
    };

    /// The settings in the environment's variable [`VARIABLE`].
    ///
    /// # Errors
    /// The first word that is not a setting.
    pub fn of_environment() -> Result<Self, String> {
        env::var(VARIABLE).unwrap_or_default().parse()
    }

    /// The settings as text, as [`VARIABLE`] holds them.
    #[must_use]
    pub fn text(&self) -> String {
        let order = match self.order {
            ExecutionOrder::Eager => "eager".to_owned(),
            ExecutionOrder::Lazy => "lazy".to_owned(),
            ExecutionOrder::Random { seed } => seed.to_string(),
        };
        let mut text = format!(
            "devices={} memory_mib={} driver={} capability={} order={order} backwards={}",
            self.devices,
            self.memory_mib,
            self.driver,
            self.capability,
            u8::from(self.is_backwards),
        );
        if let Some(launch) = self.faulty_launch {
            text.push_str(&format!(" faulty_launch={launch}"));
        }
        if let Some(code) = self.refusal {
            text.push_str(&format!(" refusal={code}"));
        }
        text
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "devices" => self.devices = value.parse().ok()?,
            "memory_mib" => self.memory_mib = value.parse().ok()?,
            "driver" => self.driver = value.parse().ok()?,
            "capability" => self.capability = value.parse().ok()?,
            "backwards" => self.is_backwards = value.parse::<u8>().ok()? != 0,
            "faulty_launch" => self.faulty_launch = Some(value.parse().ok()?),
            "refusal" => self.refusal = Some(value.parse().ok()?),
            "order" => {
                self.order = match value {
                    "eager" => ExecutionOrder::Eager,
                    "lazy" => ExecutionOrder::Lazy,
                    seed => ExecutionOrder::Random { seed: seed.parse().ok()? },
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for EmulatorSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::DEFAULT;
        for word in text.split_whitespace() {
            let set = word.split_once('=').and_then(|(name, value)| settings.set(name, value));
            set.ok_or_else(|| format!("{VARIABLE}: {word:?} is not a setting"))?;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::{EmulatorSettings, ExecutionOrder};

    #[test]
    fn settings_are_read_as_they_are_written() {
        assert_eq!("".parse(), Ok(EmulatorSettings::DEFAULT));
        let settings = EmulatorSettings {
            devices: 2,
            order: ExecutionOrder::Random { seed: 7 },
            is_backwards: true,
            faulty_launch: Some(3),
            refusal: Some(802),
            ..EmulatorSettings::DEFAULT
        };
        assert_eq!(settings.text().parse(), Ok(settings));
        let error = "order=sideways".parse::<EmulatorSettings>().expect_err("no such order");
        assert!(error.contains("order=sideways"), "{error}");
    }
}
