"""One entry of MaxText's file, read as text by the test of published settings."""

llama3_1_8b_8192_no_collective_matmul = _add_to_model_dictionary(  # noqa: F821
    trillium_model_dict,  # noqa: F821
    MaxTextModel(  # noqa: F821
        model_name="llama3_1-8b-8192-no-collective-matmul",
        model_type="llama3.1-8b",
        tuning_params={
            "per_device_batch_size": 3,
            "ici_fsdp_parallelism": -1,
            "remat_policy": "custom",
            "decoder_layer_input": "offload",
            "out_proj": "offload",
            "query_proj": "offload",
            "key_proj": "offload",
            "value_proj": "offload",
            "max_target_length": 8192,
            "attention": "flash",
            "use_iota_embed": True,
        },
    ),
)
