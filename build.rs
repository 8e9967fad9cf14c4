//! Compiles the protocol with protox, so that no `protoc` is needed on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "fencepost/worker/v1/worker.proto",
        "fencepost/producer/v1/producer.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=migrations");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // The call is named Connect, as the generated transport helper would be.
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
