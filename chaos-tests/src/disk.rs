//! A controller's disk: an append-only list of records, durable up to the last sync.

use crate::random::Draws;

/// A record, and whether it survives a crash.
#[derive(Clone, Debug)]
struct DiskRecord {
    bytes: Vec<u8>,
    is_durable: bool,
}

/// The disk of one machine.
#[derive(Clone, Debug, Default)]
pub struct MachineDisk {
    slots: Vec<DiskRecord>,
    /// Records that were trimmed away before the first one here.
    trimmed: u64,
    /// The state that a snapshot of the machine would bring back.
    image: Option<(u64, Vec<Vec<u8>>)>,
    /// Whether writes to the disk fail.
    pub fails: bool,
}

/// The damage of a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashDamage {
    /// Records that are gone.
    pub lost: usize,
    /// Whether the last one is there in part.
    pub is_torn: bool,
}

impl MachineDisk {
    /// Writes records, not durable yet. Yields the number after the last one.
    pub fn append(&mut self, records: impl IntoIterator<Item = Vec<u8>>) -> u64 {
        self.slots.extend(records.into_iter().map(|bytes| DiskRecord { bytes, is_durable: false }));
        self.end()
    }

    fn end(&self) -> u64 {
        self.trimmed + self.slots.len() as u64
    }

    /// Makes everything before record `end` durable.
    pub fn sync(&mut self, end: u64) {
        let count = end.saturating_sub(self.trimmed) as usize;
        self.slots.iter_mut().take(count).for_each(|slot| slot.is_durable = true);
    }

    /// Removes records that are not needed.
    pub fn trim(&mut self, before: u64) {
        let count = before.saturating_sub(self.trimmed).min(self.slots.len() as u64);
        self.slots.drain(..count as usize);
        self.trimmed += count;
    }

    /// Power goes: of the writes that were not durable a part may be there, and the last of it
    /// torn.
    pub fn crash(&mut self, draws: &mut Draws) -> CrashDamage {
        let durable = self.slots.iter().take_while(|slot| slot.is_durable).count();
        let pending = self.slots.len() - durable;
        let survive = draws.below(pending as u64 + 1) as usize;
        self.slots.truncate(durable + survive);
        let mut damage = CrashDamage { lost: pending - survive, is_torn: false };
        if survive > 0 && draws.chance(0.5) {
            let last = self.slots.last_mut().expect("some survive");
            let keep = draws.below(last.bytes.len() as u64) as usize;
            last.bytes.truncate(keep);
            damage.is_torn = true;
        }
        // The slots that survived the crash are those that the platter holds.
        self.slots.iter_mut().for_each(|slot| slot.is_durable = true);
        damage
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.iter().map(|slot| &slot.bytes[..])
    }

    /// Numbers of records begin anew with the first one there is.
    pub fn renumber(&mut self) {
        self.trimmed = 0;
        self.image = None;
    }

    /// Cuts the last record off, because it was torn.
    pub fn cut_last(&mut self) {
        self.slots.pop();
    }

    /// Flips a bit of a record.
    pub fn flip(&mut self, draws: &mut Draws) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let index = draws.below(self.slots.len() as u64) as usize;
        let bytes = &mut self.slots[index].bytes;
        if bytes.is_empty() {
            return false;
        }
        let at = draws.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << draws.below(8);
        true
    }

    /// Remembers the slots that are durable now.
    pub fn take_image(&mut self) {
        let durable = self.slots.iter().take_while(|slot| slot.is_durable);
        self.image = Some((self.trimmed, durable.map(|slot| slot.bytes.clone()).collect()));
    }

    /// Goes back to the remembered image. Yields whether that differs.
    pub fn restore_image(&mut self) -> bool {
        let Some((trimmed, records)) = self.image.take() else { return false };
        let is_older = trimmed + (records.len() as u64) < self.end();
        if is_older {
            self.trimmed = trimmed;
            let slot = |bytes| DiskRecord { bytes, is_durable: true };
            self.slots = records.into_iter().map(slot).collect();
        }
        is_older
    }
}

#[cfg(test)]
mod tests {
    use super::MachineDisk;
    use crate::random::{DrawPurpose, Draws};

    #[test]
    fn a_crash_takes_nothing_that_was_synced() {
        for seed in 0..200 {
            let mut draws = Draws::new(seed, DrawPurpose::Disk);
            let mut disk = MachineDisk::default();
            let end = disk.append([vec![1; 9], vec![2; 9]]);
            disk.sync(end);
            disk.append([vec![3; 9], vec![4; 9]]);
            let damage = disk.crash(&mut draws);
            let found: Vec<&[u8]> = disk.records().collect();
            assert_eq!(found[..2], [&[1; 9][..], &[2; 9][..]]);
            assert_eq!(found.len(), 4 - damage.lost);
            let is_whole = |record: &&[u8]| record.len() == 9;
            assert_eq!(damage.is_torn, !found.iter().all(is_whole));
        }
    }

    #[test]
    fn an_image_brings_the_past_back() {
        let mut disk = MachineDisk::default();
        let end = disk.append([vec![1]]);
        disk.sync(end);
        disk.take_image();
        let end = disk.append([vec![2]]);
        disk.sync(end);
        assert!(disk.restore_image());
        assert_eq!(disk.records().count(), 1);
        assert!(!disk.restore_image(), "an image is used once");
    }
}
