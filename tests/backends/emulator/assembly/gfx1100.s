buffer_gl0_inv
buffer_load_b128 v[49:52], v61, s[16:19], 0 offen
buffer_load_b32 v7, v7, s[24:27], 0 offen
buffer_load_u16 v2, v2, s[8:11], 0 offen
buffer_store_b128 v[55:58], v51, s[20:23], 0 offen
buffer_store_b16 v46, v33, s[24:27], 0 offen
buffer_store_b32 v3, v12, s[12:15], 0 offen
ds_bpermute_b32 v14, v1, v12
ds_load_2addr_b32 v[13:14], v13 offset0:8 offset1:12
ds_load_2addr_b64 v[58:61], v1 offset1:4
ds_load_2addr_stride64_b32 v[2:3], v15 offset0:10 offset1:12
ds_load_b128 v[9:12], v123 offset:3328
ds_load_b32 v1, v41
ds_load_b64 v[35:36], v24
ds_load_u16 v37, v17 offset:3840
ds_load_u16_d16 v20, v9 offset:2944
ds_load_u16_d16_hi v24, v16 offset:2240
ds_store_2addr_b32 v5, v133, v132 offset0:64 offset1:96
ds_store_2addr_stride64_b32 v122, v76, v75 offset0:8 offset1:12
ds_store_2addr_stride64_b64 v93, v[83:84], v[87:88] offset1:4
ds_store_b128 v15, v[56:59]
ds_store_b16 v76, v52 offset:1792
ds_store_b16_d16_hi v142, v98 offset:1024
ds_store_b32 v30, v8 offset:64
ds_store_b64 v20, v[18:19]
global_load_b128 v[1:4], v[1:2], off
global_load_b32 v7, v[11:12], off
global_load_b64 v[9:10], v[13:14], off
global_load_d16_b16 v124, v[16:17], off
global_load_d16_hi_b16 v34, v[3:4], off
global_load_u16 v19, v[21:22], off offset:6
global_store_b128 v[0:1], v[2:5], off offset:2048
global_store_b16 v[0:1], v50, off offset:1536
global_store_b32 v[15:16], v18, off
global_store_b64 v2, v[48:49], s[2:3]
global_store_b96 v[0:1], v[165:167], off
global_store_d16_hi_b16 v[21:22], v18, off
s_abs_i32 s31, s28
s_add_i32 s38, s43, s42
s_add_i32 s4, s25, 0x7f
s_add_u32 s0, s6, s1
s_add_u32 s22, s22, 0x1000
s_addc_u32 s9, s9, s38
s_addk_i32 s21, 0x1000
s_and_b32 s2, s17, vcc_lo
s_and_b32 s1, s1, 0xffff
s_and_not1_b32 exec_lo, exec_lo, s6
s_and_not1_saveexec_b32 s2, s2
s_and_saveexec_b32 s31, s12
s_ashr_i32 s7, s6, 31
s_ashr_i64 s[0:1], s[16:17], 3
s_barrier
s_bfe_i32 s0, s50, 0x10006
s_bfe_u32 s22, s12, 0x20006
s_bitcmp0_b32 s2, 6
s_bitcmp1_b32 s4, 0
s_branch 64755
s_cbranch_execnz 207
s_cbranch_execz 65273
s_cbranch_scc0 786
s_cbranch_scc1 125
s_cbranch_vccnz 65143
s_cbranch_vccz 881
s_clause 0x4
s_cls_i32 s4, s15
s_cmp_eq_u32 s21, s11
s_cmp_ge_i32 s8, s34
s_cmp_ge_u32 s13, s9
s_cmp_gt_i32 s20, 7
s_cmp_gt_u32 s18, 63
s_cmp_le_i32 s1, s17
s_cmp_lg_u32 s3, 0
s_cmp_lt_i32 s16, s35
s_cmp_lt_u32 s18, 64
s_cmpk_eq_i32 s0, 0x800
s_cmpk_gt_u32 s18, 0x80
s_cmpk_lt_u32 s18, 0x80
s_cselect_b32 s6, s15, s6
s_cselect_b32 s2, s2, 0x800
s_delay_alu instid0(SALU_CYCLE_1) | instskip(SKIP_2) | instid1(SALU_CYCLE_1)
s_endpgm
s_load_b128 s[12:15], s[0:1], 0x20
s_load_b256 s[16:23], s[0:1], 0x40
s_load_b32 s35, s[0:1], 0x48
s_load_b512 s[16:31], s[0:1], null
s_load_b64 s[16:17], s[0:1], 0x68
s_lshl_b32 s6, s4, 3
s_lshl_b64 s[8:9], s[8:9], 4
s_lshr_b32 s1, s24, 2
s_lshr_b64 s[10:11], s[2:3], 31
s_min_i32 s28, s8, 8
s_min_u32 s4, s3, s2
s_mov_b32 s11, s7
s_mov_b32 s0, 0x76543210
s_mov_b64 s[40:41], s[6:7]
s_mul_hi_i32 s1, s20, s3
s_mul_hi_u32 s28, s24, s14
s_mul_i32 s45, s28, s49
s_mul_i32 s0, s7, 0x5000
s_nop 0
s_or_b32 exec_lo, exec_lo, s8
s_or_b32 s9, s7, 0x2000
s_or_b64 s[48:49], s[20:21], s[30:31]
s_or_saveexec_b32 s3, s4
s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)
s_sub_i32 s5, s5, s10
s_sub_u32 s24, s20, s16
s_subb_u32 s24, 0, s21
s_waitcnt vmcnt(13)
s_waitcnt_depctr depctr_va_vdst(0)
s_waitcnt_vscnt null, 0x0
s_xor_b32 s5, s15, s2
s_xor_b64 s[24:25], s[24:25], s[22:23]
v_add3_u32 v43, v43, v45, v15
v_add3_u32 v80, v75, v85, 0x7fff
v_add_co_ci_u32_e64 v13, null, s17, v13, s15
v_add_co_u32 v5, vcc_lo, v39, s4
v_add_co_u32 v11, s3, 0x800, v3
v_add_f32_dpp v9, v9, v9 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_f32_e32 v8, v9, v12
v_add_f32_e32 v18, 0xc0200000, v18
v_add_lshl_u32 v1, s2, v0, 2
v_add_nc_u32_e32 v10, v0, v11
v_add_nc_u32_e32 v7, 0x7fff, v7
v_alignbit_b32 v19, v44, v21, 16
v_and_b16 v1.l, v0.l, 31
v_and_b32_e32 v0, 60, v0
v_and_b32_e32 v121, 0xf0, v131
v_and_or_b32 v1, v0, 31, s9
v_and_or_b32 v62, 0xe0, s12, v61
v_ashrrev_i32_e32 v23, 31, v22
v_bfe_i32 v33, v0, 2, 1
v_bfe_u32 v46, v45, 16, 1
v_bfi_b32 v60, 0x7fffffff, v105, v103
v_cmp_eq_u32_e32 vcc_lo, 0, v4
v_cmp_eq_u32_e64 s2, 3, v32
v_cmp_ge_f32_e64 vcc_lo, |v5|, 1.0
v_cmp_ge_i32_e64 s7, s25, v8
v_cmp_ge_i64_e64 s3, s[18:19], s[14:15]
v_cmp_gt_f16_e32 vcc_lo, 0, v2.l
v_cmp_gt_f16_e64 s0, 0, v15.l
v_cmp_gt_f32_e32 vcc_lo, 0, v37
v_cmp_gt_f32_e32 vcc_lo, 0x43960000, v30
v_cmp_gt_f32_e64 s8, 0, v12
v_cmp_gt_f32_e64 s0, 0xc2200000, v25
v_cmp_gt_i32_e32 vcc_lo, s22, v9
v_cmp_gt_i32_e64 s5, s33, v15
v_cmp_gt_i64_e32 vcc_lo, s[24:25], v[1:2]
v_cmp_gt_i64_e64 s2, s[14:15], v[22:23]
v_cmp_gt_i64_e64 s3, 0x800, s[2:3]
v_cmp_gt_u32_e32 vcc_lo, s27, v108
v_cmp_gt_u32_e64 s2, 32, v0
v_cmp_le_f32_e32 vcc_lo, 0xc3160000, v0
v_cmp_le_i32_e32 vcc_lo, s28, v0
v_cmp_le_i32_e64 s0, s28, v1
v_cmp_le_i64_e64 s10, s[22:23], s[28:29]
v_cmp_lt_i32_e32 vcc_lo, 0, v12
v_cmp_lt_i32_e64 s3, 2, v29
v_cmp_lt_i64_e64 s0, s[54:55], s[18:19]
v_cmp_ne_u32_e32 vcc_lo, 1, v19
v_cmp_neq_f32_e32 vcc_lo, 0xff800000, v10
v_cmp_nge_f16_e32 vcc_lo, 0, v15.h
v_cmp_nge_f32_e32 vcc_lo, 0, v31
v_cmp_ngt_f32_e32 vcc_lo, 0, v10
v_cmp_ngt_f32_e32 vcc_lo, 0xc3160000, v15
v_cmp_ngt_f32_e64 s3, 0, v28
v_cmp_ngt_f32_e64 s3, 0xc2b17218, v44
v_cmp_nlt_f32_e32 vcc_lo, 0x42ce8ed0, v19
v_cmp_nlt_f32_e64 s2, |v39|, 1.0
v_cmp_nlt_f32_e64 s3, 0x42ce8ed0, v123
v_cmp_o_f32_e32 vcc_lo, v11, v11
v_cmp_o_f32_e64 s14, v40, v40
v_cmp_u_f32_e32 vcc_lo, v42, v42
v_cmp_u_f32_e64 s1, v7, v7
v_cmpx_eq_u32_e32 0, v0
v_cmpx_gt_i32_e32 s12, v6
v_cmpx_gt_i32_e64 s17, v27
v_cmpx_lt_i32_e32 1, v7
v_cmpx_lt_i32_e64 v79, v1
v_cmpx_nlt_f32_e64 |v48|, 1.0
v_cndmask_b16 v0.l, 0, v1.h, vcc_lo
v_cndmask_b16 v71.l, 0x7fff, v76.l, s4
v_cndmask_b32_e32 v54, 1.0, v70, vcc_lo
v_cndmask_b32_e32 v22, 0xc3160000, v22, vcc_lo
v_cndmask_b32_e64 v88, 0, v58, s2
v_cndmask_b32_e64 v2, 0x80000000, v9, s1
v_cvt_f16_f32_e32 v17.l, v17
v_cvt_f32_f16_e32 v22, v1.h
v_cvt_f32_f16_e64 v178, v113.l
v_cvt_f32_i32_e32 v35, s20
v_cvt_f32_u32_e32 v1, s25
v_cvt_f32_ubyte0_e32 v2, s3
v_cvt_i32_f32_e32 v83, v84
v_cvt_u32_f32_e32 v2, v2
v_cvt_u32_u16_e32 v1, v1.l
v_div_fixup_f32 v11, v11, v30, 1.0
v_div_fmas_f32 v21, v24, v21, v31
v_div_scale_f32 v4, null, v63, v63, v1
v_exp_f32_e32 v68, v68
v_fma_f32 v91, v48, v4, v68
v_fma_f32 v18, 0x3e095d4f, v18, 1.0
v_fma_mix_f32 v7, v24, 1.0, v7 op_sel_hi:[1,1,0]
v_fma_mixhi_f16 v30, v77, v69, neg(0)
v_fma_mixlo_f16 v4, v10, v4, neg(0)
v_fmaak_f32 v86, v85, v86, 0xbcdac9b8
v_fmac_f32_e32 v80, v40, v123
v_fmac_f32_e32 v25, 0x3fb8aa3b, v22
v_fmamk_f32 v114, v109, 0xb2a5705f, v114
v_ldexp_f32 v135, v135, v137
v_lshl_add_u32 v17, v130, 8, 0
v_lshl_add_u32 v9, v9, 1, 0x80
v_lshl_or_b32 v33, s41, 3, v33
v_lshlrev_b32_e32 v51, 16, v5
v_lshlrev_b64 v[18:19], 2, v[18:19]
v_lshrrev_b32_e32 v69, 16, v69
v_mad_i64_i32 v[0:1], null, s56, s16, v[17:18]
v_mad_u64_u32 v[1:2], null, v9, s2, 0
v_max3_f32 v14, v14, v19, v4
v_max_f32_e32 v27, v27, v37
v_max_f32_e64 v23, |v16|, |v16|
v_mbcnt_lo_u32_b32 v9, -1, 0
v_min_f32_e32 v43, 4.0, v43
v_min_f32_e32 v30, 0x41a00000, v30
v_min_i32_e32 v25, s0, v23
v_mov_b16_e32 v125.l, 0
v_mov_b16_e32 v6.l, 0xff80
v_mov_b16_e64 v129.l, 0
v_mov_b32_dpp v3, v3 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
v_mov_b32_e32 v31, 0
v_mov_b32_e32 v17, 0xff800000
v_mul_f32_e32 v73, v72, v73
v_mul_f32_e32 v1, 0x5f7ffffc, v1
v_mul_f32_e64 v42, |v39|, -0.5
v_mul_f32_e64 v21, 0xbfb8aa3b, |v21|
v_mul_lo_u32 v4, v4, s2
v_or3_b32 v20, v8, s16, 16
v_or3_b32 v10, v8, s18, 0x60
v_or_b16 v1.l, s1, v1.l
v_or_b32_e32 v1, s28, v48
v_or_b32_e32 v3, 0x200, v7
v_perm_b32 v207, v53, v57, 0x3020706
v_permlanex16_b32 v34, v33, -1, -1 op_sel:[1,0]
v_permlanex16_b32 v19, v14, s1, 0xfedcba98 op_sel:[1,0]
v_rcp_f32_e32 v48, v46
v_rcp_iflag_f32_e32 v1, v1
v_readfirstlane_b32 s30, v0
v_readlane_b32 s42, v1, 31
v_rndne_f32_e32 v108, v106
v_rsq_f32_e32 v7, v4
v_sub_f32_e32 v52, v52, v60
v_sub_nc_u32_e32 v7, s18, v27
v_sub_nc_u32_e32 v109, 0xffffffc0, v27
v_subrev_nc_u32_e32 v4, s8, v5
v_trunc_f32_e32 v2, v2
v_wmma_f32_16x16x16_bf16 v[33:40], v[196:203], v[81:88], v[33:40]
v_wmma_f32_16x16x16_f16 v[17:24], v[124:131], v[41:48], v[17:24]
v_xad_u32 v68, v65, 16, 0
v_xad_u32 v12, 0x860, v9, 0
v_xor3_b32 v28, v0, v28, v29
v_xor_b32_e32 v5, 32, v159
v_xor_b32_e32 v83, 0x60, v86
v_dual_cndmask_b32 v23, 1.0, v26 :: v_dual_lshlrev_b32 v24, 16, v25
v_dual_sub_f32 v8, v8, v10 :: v_dual_and_b32 v3, 0xffff0000, v3
v_dual_mul_f32 v1, v20, v20 :: v_dual_and_b32 v26, 0xffff0000, v7
v_dual_fmaak_f32 v14, v14, v28, 0xbbf4beb1 :: v_dual_lshlrev_b32 v3, 16, v3
v_dual_max_f32 v0, v0, v14 :: v_dual_sub_f32 v3, v3, v1
v_dual_min_f32 v9, 0x41a00000, v9 :: v_dual_lshlrev_b32 v8, 16, v8
v_dual_max_f32 v1, v1, v20 :: v_dual_add_nc_u32 v28, 0, v14
v_dual_sub_f32 v27, v21, v21 :: v_dual_fmaak_f32 v24, v24, v36, 0x3d779e05
v_dual_mul_f32 v0, 0x3fb8aa3b, v0 :: v_dual_mov_b32 v13, v9
v_dual_mul_f32 v44, 0x3d372713, v16 :: v_dual_add_f32 v15, v15, v27
v_dual_add_f32 v11, 1.0, v11 :: v_dual_mul_f32 v2, 0xbfb8aa3b, v2
v_dual_cndmask_b32 v5, v6, v9 :: v_dual_cndmask_b32 v6, v9, v6
v_dual_mul_f32 v29, 0.5, v45 :: v_dual_add_f32 v2, 1.0, v6
v_dual_cndmask_b32 v13, 0xc3160000, v28 :: v_dual_mul_f32 v6, v6, v10
v_dual_sub_f32 v1, v1, v11 :: v_dual_max_f32 v0, v10, v0
v_dual_mul_f32 v16, 0x3fcc422a, v11 :: v_dual_lshlrev_b32 v9, 16, v9
v_dual_add_f32 v3, v3, v58 :: v_dual_sub_f32 v24, v24, v45
v_dual_max_f32 v26, v26, v36 :: v_dual_max_f32 v27, v27, v37
v_dual_fmaak_f32 v26, v25, v26, 0x3fbe87b0 :: v_dual_cndmask_b32 v23, v24, v23
v_dual_mul_f32 v18, v46, v18 :: v_dual_sub_f32 v21, v21, v33
v_dual_fmaak_f32 v26, v23, v26, 0x3fbe87b0 :: v_dual_fmac_f32 v25, v33, v25
v_dual_sub_f32 v72, v72, v78 :: v_dual_sub_f32 v75, v75, v79
v_dual_mul_f32 v29, 0x3fcc422a, v34 :: v_dual_cndmask_b32 v20, 1.0, v20
v_dual_add_f32 v53, v53, v56 :: v_dual_mul_f32 v56, v76, v89
v_dual_max_f32 v3, v3, v3 :: v_dual_max_f32 v0, 0xff800000, v0
