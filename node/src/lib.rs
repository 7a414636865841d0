//! The process `zbelastic`: command line, configuration, worker threads and run folder.
