//! The bytes themselves, and what becomes of bytes that are not what they should be.

mod damage;
mod golden;
mod programs;
mod samples;
mod words;
