//! Which keys may change without a bit of the result changing with them
//! ([numerics](../../../docs/numerics.md)).

use super::{CheckpointConfig, RunConfig};

impl RunConfig {
    /// Whether the other configuration makes the same bits: whether they differ in nothing but in
    /// when and where passes run, in the activations kept of them, and in the files a cluster keeps
    /// (in the same `checkpoint.dir`) and waits for.
    #[must_use]
    pub fn makes_same_bits(&self, other: &Self) -> bool {
        let moved = Self {
            // The model has the tensors, and the optimizer their rates, whatever they are called by.
            freeze: other.freeze.clone(),
            decay_groups: other.decay_groups.clone(),
            lora: other.lora.clone(),
            schedule: other.schedule,
            chunks_per_stage: other.chunks_per_stage,
            replicas: other.replicas,
            stage_bytes_max: other.stage_bytes_max,
            window: other.window,
            memory: other.memory,
            checkpoint: CheckpointConfig {
                // Where a parent's checkpoint lies.
                folder: self.checkpoint.folder.clone(),
                ..other.checkpoint.clone()
            },
            elastic: other.elastic.clone(),
            evaluate_every: other.evaluate_every,
            ..self.clone()
        };
        let slices = |config: &Self| config.slice_count.unwrap_or(config.schedule.slice_count());
        moved == *other && slices(self) == slices(other)
    }
}

#[cfg(test)]
mod tests {
    use crate::load_document;

    #[test]
    fn what_is_no_arithmetic_may_change_and_nothing_else() {
        let base = "[model]\npreset = \"tiny\"\n";
        let config =
            |text: &str| load_document("test", &format!("{base}{text}")).expect("legal").config;
        let held = config("");
        for text in [
            "[schedule]\nkind = \"1f1b\"\nwindow = 0\n",
            "[schedule]\nkind = \"zb-v\"\n",
            "[checkpoint]\nevery = 7\ncopies = 0\n",
            "[elastic]\ncopies = 2\nsettle = \"2s\"\n",
            "[train]\neval_every = 5\n",
        ] {
            assert!(held.makes_same_bits(&config(text)), "{text}");
        }
        let two_lanes = |schedule: &str| config(&format!("[train]\nlanes = 2\n{schedule}"));
        let chimera = two_lanes("[schedule]\nkind = \"chimera\"\n");
        assert!(two_lanes("").makes_same_bits(&chimera));
        assert!(two_lanes("").makes_same_bits(&two_lanes("[schedule]\nreplicas = 2\n")));
        let islands = |folders: &str, island: u32| {
            let island = format!("every = 9\nisland = {island}\n");
            config(&format!("[sync]\nfolders = [{folders}]\n{island}"))
        };
        let first = islands("\"a\", \"b\"", 0);
        assert!(first.makes_same_bits(&islands("\"a\", \"b\"", 0)));
        assert!(!first.makes_same_bits(&islands("\"a\", \"b\"", 1)));
        // What was exchanged lies in the folders.
        assert!(!first.makes_same_bits(&islands("\"a\", \"s3://c/d\"", 0)));
        let named = |pattern: &str| config(&format!("[train]\nfreeze = [\"{pattern}\"]\n"));
        assert!(named("embed").makes_same_bits(&named("embed.*")));
        let decayed = |group: &str| config(&format!("[optimizer]\ndecay_groups = [\"{group}\"]\n"));
        assert!(decayed("embed=0.5").makes_same_bits(&decayed("embed.* = 5e-1")));
        assert!(!decayed("embed=0.5").makes_same_bits(&decayed("embed=0.6")));
        let adapted = |target: &str| config(&format!("[lora]\nrank = 2\ntargets = \"{target}\"\n"));
        assert!(adapted("c_attn").makes_same_bits(&adapted("attn.c_attn")));
        assert!(!adapted("c_attn").makes_same_bits(&adapted("c_fc")));
        for text in [
            "[train]\nsteps = 7\n",
            "[train]\nseed = 7\n",
            "[train]\nmicrobatch = 1\n",
            "[train]\nz_loss = 0.0001\n",
            "[train]\nfreeze = [\"embed\"]\n",
            "[lora]\nrank = 2\n",
            "[optimizer]\nlr = 0.002\n",
            "[optimizer]\ndecay_on = \"all\"\n",
            "[optimizer]\ndecay_groups = [\"embed=0\"]\n",
            "[train]\nlanes = 2\n",
            "[schedule]\nkind = \"seq1f1b\"\n",
            "[sync]\nevery = 9\nfolders = [\"a\", \"b\"]\n",
        ] {
            assert!(!held.makes_same_bits(&config(text)), "{text}");
        }
    }
}
