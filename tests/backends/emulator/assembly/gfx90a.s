buffer_load_dword v22, v22, s[20:23], 0 offen
buffer_load_dwordx2 v[38:39], v0, s[8:11], 0 offen
buffer_load_dwordx4 v[6:9], v16, s[24:27], 0 offen
buffer_load_ushort v102, v89, s[44:47], 0 offen
buffer_store_dword v22, v51, s[40:43], 0 offen
buffer_store_dwordx4 v[38:41], v66, s[20:23], 0 offen
buffer_store_short v0, v13, s[28:31], 0 offen
ds_bpermute_b32 v12, v6, v1
ds_read2_b32 v[34:35], v45 offset1:8
ds_read2st64_b32 v[8:9], v5 offset0:2 offset1:3
ds_read2st64_b64 v[132:135], v179 offset0:8 offset1:10
ds_read_b128 v[2:5], v5
ds_read_b32 v41, v58
ds_read_b64 v[2:3], v27
ds_read_u16 v195, v181 offset:1792
ds_write2_b32 v1, v20, v21 offset1:32
ds_write2st64_b32 v19, v41, v40 offset0:16 offset1:20
ds_write2st64_b64 v104, v[24:25], v[20:21] offset0:16 offset1:24
ds_write_b128 v105, v[22:25] offset:8192
ds_write_b16 v180, v175 offset:6144
ds_write_b32 v8, v1
ds_write_b64 v1, v[20:21]
global_load_dword v51, v[20:21], off
global_load_dwordx2 v[56:57], v69, s[4:5]
global_load_dwordx4 v[26:29], v[36:37], off
global_load_ushort v72, v[48:49], off
global_store_dword v[56:57], v34, off
global_store_dwordx2 v[14:15], v[10:11], off
global_store_dwordx4 v[18:19], v[10:13], off
global_store_short v[10:11], v145, off
global_store_short_d16_hi v[14:15], v9, off offset:2048
s_abs_i32 s30, s29
s_add_i32 s24, s25, s24
s_add_i32 s13, s22, 0x7f
s_add_u32 s8, s22, s2
s_add_u32 s8, s8, 0x1000
s_addc_u32 s18, s15, s9
s_addk_i32 s36, 0x7f
s_and_b32 s26, s24, 8
s_and_b32 s33, s0, 0xc0
s_and_b64 s[2:3], s[2:3], vcc
s_and_saveexec_b64 s[38:39], s[6:7]
s_andn2_b64 exec, exec, s[0:1]
s_andn2_saveexec_b64 s[44:45], s[44:45]
s_ashr_i32 s16, s21, 2
s_ashr_i64 s[0:1], s[0:1], 2
s_barrier
s_bfe_u32 s2, s42, 0x20006
s_bitcmp0_b32 s13, 7
s_branch 65446
s_brev_b32 s8, -2
s_cbranch_execnz 15
s_cbranch_execz 65457
s_cbranch_scc0 162
s_cbranch_scc1 82
s_cbranch_vccnz 438
s_cbranch_vccz 795
s_cmp_eq_u32 s33, s25
s_cmp_eq_u64 s[34:35], 3
s_cmp_ge_u32 s2, s18
s_cmp_gt_i32 s38, 7
s_cmp_lg_u32 s34, 0
s_cmp_lg_u64 s[24:25], 0
s_cmp_lt_i32 s45, s29
s_cmp_lt_u32 s42, 17
s_cmpk_eq_i32 s3, 0x2000
s_cmpk_lt_u32 s31, 0x41
s_cselect_b32 s0, 1, 0
s_cselect_b32 s28, s2, 0x800
s_cselect_b64 s[24:25], -1, 0
s_endpgm
s_flbit_i32 s0, s19
s_load_dword s38, s[4:5], 0x68
s_load_dwordx16 s[12:27], s[4:5], 0x0
s_load_dwordx2 s[10:11], s[4:5], 0x38
s_load_dwordx4 s[16:19], s[4:5], 0x40
s_load_dwordx8 s[44:51], s[4:5], 0x40
s_lshl2_add_u32 s6, s54, 0
s_lshl3_add_u32 s6, s57, 0
s_lshl_b32 s35, s10, 6
s_lshl_b64 s[30:31], s[36:37], 9
s_lshr_b32 s0, s0, 30
s_lshr_b64 s[6:7], s[2:3], 3
s_min_i32 s3, s3, 1
s_min_u32 s2, s2, 1
s_mov_b32 s28, s1
s_mov_b32 s10, 0x7ffffffe
s_mov_b64 vcc, s[4:5]
s_movk_i32 s7, 0x7fff
s_mul_hi_i32 s6, s34, s30
s_mul_hi_u32 s25, s23, s24
s_mul_i32 s17, s21, s17
s_nop 1
s_or_b32 s4, s45, 12
s_or_b64 exec, exec, s[28:29]
s_sub_i32 s16, s10, s1
s_sub_u32 s28, s28, s30
s_subb_u32 s29, s25, s21
s_waitcnt vmcnt(10)
s_xor_b32 s11, s22, s1
s_xor_b64 s[4:5], exec, s[4:5]
v_add3_u32 v75, v75, v71, v24
v_add_co_u32_e32 v74, vcc, s24, v4
v_add_co_u32_e32 v16, vcc, 0x400, v10
v_add_co_u32_e64 v132, s[6:7], s10, v164
v_add_f32_dpp v51, v51, v51 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_f32_e32 v0, s0, v0
v_add_lshl_u32 v35, s40, v1, 2
v_add_u32_e32 v15, 0, v15
v_add_u32_e32 v48, 0x1400, v14
v_add_u32_sdwa v2, s25, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_addc_co_u32_e32 v35, vcc, v75, v35, vcc
v_addc_co_u32_e64 v51, s[34:35], v35, v51, s[34:35]
v_and_b32_e32 v6, 48, v6
v_and_b32_e32 v4, 0x7fffffff, v2
v_and_b32_sdwa v9, v13, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
v_and_or_b32 v2, v4, s58, v2
v_ashrrev_i32_e32 v67, 31, v66
v_bfe_i32 v2, v0, 0, 1
v_bfe_u32 v23, v22, 16, 1
v_bfi_b32 v50, s41, v111, v108
v_bfrev_b32_e32 v1, 1
v_cmp_eq_u32_e32 vcc, 0, v20
v_cmp_eq_u32_e64 s[0:1], 0, v0
v_cmp_ge_i64_e32 vcc, s[38:39], v[14:15]
v_cmp_gt_f16_e64 s[8:9], 0, v13
v_cmp_gt_f32_e32 vcc, s11, v8
v_cmp_gt_f32_e64 s[20:21], s20, v10
v_cmp_gt_i32_e32 vcc, s33, v4
v_cmp_gt_i32_e64 s[4:5], s24, v3
v_cmp_gt_i64_e32 vcc, s[14:15], v[14:15]
v_cmp_gt_i64_e64 s[12:13], s[22:23], v[8:9]
v_cmp_gt_u32_e64 s[4:5], s19, v18
v_cmp_le_i32_e32 vcc, s33, v0
v_cmp_le_i32_e64 s[0:1], s33, v2
v_cmp_le_i64_e32 vcc, s[14:15], v[2:3]
v_cmp_lt_i32_e32 vcc, 7, v2
v_cmp_lt_i32_e64 s[2:3], 4, v2
v_cmp_lt_i32_sdwa s[34:35], v137, s44 src0_sel:BYTE_0 src1_sel:DWORD
v_cmp_lt_i64_e32 vcc, s[16:17], v[0:1]
v_cmp_lt_i64_e64 s[0:1], s[8:9], v[4:5]
v_cmp_lt_u64_e64 s[26:27], s[26:27], 3
v_cmp_ne_u32_e64 s[2:3], 1, v6
v_cmp_nge_f32_e32 vcc, 0, v26
v_cmp_ngt_f32_e32 vcc, s46, v134
v_cmp_ngt_f32_e64 s[2:3], s2, v25
v_cmp_nlt_f32_e32 vcc, s46, v107
v_cmp_nlt_f32_e64 s[2:3], |v43|, 1.0
v_cmp_o_f32_e32 vcc, v1, v1
v_cmp_o_f32_e64 s[28:29], v31, v31
v_cmp_u_f32_e32 vcc, v10, v10
v_cmp_u_f32_e64 s[4:5], v62, v62
v_cndmask_b32_e32 v6, v12, v10, vcc
v_cndmask_b32_e64 v11, v48, v47, s[2:3]
v_cndmask_b32_sdwa v8, v19, v16, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1
v_cvt_f16_f32_e32 v56, v58
v_cvt_f32_f16_e32 v6, v0
v_cvt_f32_f16_sdwa v5, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1
v_cvt_f32_i32_e32 v35, s33
v_cvt_f32_u32_e32 v1, s0
v_cvt_i32_f32_e32 v91, v93
v_cvt_u32_f32_e32 v2, v2
v_div_fixup_f32 v46, v23, v61, v46
v_div_fmas_f32 v34, v34, v38, v56
v_div_scale_f32 v21, s[6:7], v23, v23, v19
v_exp_f32_e32 v39, v39
v_fma_f32 v40, |v39|, s2, v40
v_fma_mix_f32 v47, v47, v60, neg(0) op_sel_hi:[1,0,0]
v_fma_mixhi_f16 v5, v1, v10, neg(0)
v_fma_mixlo_f16 v7, v7, v17, neg(0)
v_fmac_f32_e32 v47, v11, v48
v_fmac_f32_e32 v51, 0xba1345e1, v50
v_ldexp_f32 v127, v127, v128
v_lshl_add_u32 v10, v10, 4, s31
v_lshl_or_b32 v10, s2, 6, v1
v_lshlrev_b32_e32 v83, 16, v69
v_lshlrev_b32_sdwa v3, v1, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_lshlrev_b64 v[52:53], 1, v[50:51]
v_lshrrev_b32_e32 v37, 4, v36
v_mad_i64_i32 v[0:1], s[0:1], s33, v0, v[34:35]
v_mad_u64_u32 v[52:53], s[44:45], v22, s8, 0
v_madmk_f32 v1, v4, 0x4f800000, v1
v_max3_f32 v4, v4, v8, v9
v_max_f32_e32 v10, v8, v8
v_max_f32_e32 v22, 0xff800000, v0
v_mbcnt_hi_u32_b32 v52, -1, v52
v_mbcnt_lo_u32_b32 v3, -1, 0
v_mfma_f32_16x16x16bf16_1k v[10:13], v[76:77], v[60:61], v[10:13]
v_mfma_f32_16x16x16f16 v[72:75], v[176:177], v[188:189], v[72:75]
v_mfma_f32_16x16x4f32 v[10:13], v19, v20, v[14:17]
v_mov_b32_dpp v32, v3 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_e32 v6, s9
v_mov_b32_e32 v29, 0xbcdac9b8
v_mul_f32_e32 v6, v5, v3
v_mul_f32_e32 v39, 0x3f3504f3, v16
v_mul_f32_e64 v15, v15, -v5
v_mul_lo_u32 v56, v38, s27
v_mul_u32_u24_e32 v34, 0x88, v102
v_not_b32_e32 v1, 63
v_or3_b32 v8, v1, s22, 48
v_or_b32_e32 v28, s14, v67
v_or_b32_e32 v47, 0x43, v56
v_pack_b32_f16 v38, v48, v36
v_perm_b32 v113, v114, v113, s38
v_pk_add_f32 v[42:43], v[42:43], v[32:33] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]
v_pk_fma_f32 v[32:33], v[74:75], v[42:43], v[32:33]
v_pk_mov_b32 v[2:3], s[2:3], s[2:3] op_sel:[0,1]
v_pk_mul_f32 v[34:35], v[52:53], v[34:35]
v_rcp_f32_e32 v14, v13
v_rcp_iflag_f32_e32 v1, v1
v_readfirstlane_b32 s30, v1
v_readlane_b32 s6, v18, 63
v_rndne_f32_e32 v117, v115
v_rsq_f32_e32 v38, v32
v_sub_f32_e32 v25, v25, v28
v_subrev_f32_e32 v2, s3, v2
v_subrev_u32_e32 v13, s16, v13
v_trunc_f32_e32 v2, v2
v_xad_u32 v20, v37, 64, 0
v_xor_b32_e32 v4, v4, v0
v_xor_b32_e32 v0, 0x60, v0
